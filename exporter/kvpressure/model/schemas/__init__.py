"""PURE: JSON Schemas (draft 2020-12) of what programs read: `/api/v1/diagnosis` and `incidents --json`.

Made from the records' own vocabularies, so that they cannot lag behind. Published under docs/schemas, a file for each
version. Within a major version keys are only ever added, so objects are open; a key whose meaning or type changes is
another major version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvpressure.model.schemas import diagnosis, incidents

SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = {"diagnosis": diagnosis.SCHEMA, "incidents": incidents.SCHEMA}
"""By the name of the document."""

Schema = Mapping[str, Any]

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def misfit(schema: Schema, value: Any, defs: Schema, where: str = "it") -> str:
    """Return where the value differs from the schema, "" where it does not.

    >>> misfit({"type": "array", "items": {"type": "string"}}, ["a", 1], {})
    'it[1] is no string'
    """
    if "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        others = [misfit(one, value, defs, where) for one in schema["anyOf"]]
        return "" if "" in others else others[0]
    if why := _own_misfit(schema, value):
        return f"{where} is {why}"
    if isinstance(value, dict):
        return _object_misfit(schema, value, defs, where)
    if isinstance(value, list) and "items" in schema:
        found = (misfit(schema["items"], one, defs, f"{where}[{place}]") for place, one in enumerate(value))
        return next(filter(None, found), "")
    return ""


def _own_misfit(schema: Schema, value: Any) -> str:
    """Return why the value itself, without its parts, does not fit the schema; "" where it does."""
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(kind, value) for kind in kinds):
        return f"no {' or '.join(kinds)}"
    if "enum" in schema and value not in schema["enum"]:
        return "none of the words that it may be"
    if _is("number", value) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return "too small or too large"
    return ""


def _object_misfit(schema: Schema, value: Mapping[str, Any], defs: Schema, where: str) -> str:
    named: Schema = schema.get("properties", {})
    if lacks := [name for name in schema.get("required", ()) if name not in value]:
        return f"{where} has no {lacks[0]}"
    other = schema.get("additionalProperties")
    for name, one in value.items():
        part = named.get(name, other)
        if part is None and named:
            return f"{where} has something that it should not have"
        if part is not None and (why := misfit(part, one, defs, f"{where}.{name}" if name in named else where)):
            return why
    return ""


def _is(kind: str, value: Any) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
