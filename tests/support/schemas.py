"""Documents against the published schemas, with jsonschema as the judge: closed, so that no key goes undescribed."""

import json
from collections.abc import Mapping
from typing import Any

import jsonschema

from kvpressure.model.schemas import SCHEMAS


def version(schema: Mapping[str, Any]) -> str:
    """The version in a schema's id."""
    return str(schema["$id"]).rpartition(":")[2]


def closed(schema: Any) -> Any:
    """The same schema without room for keys that it does not name."""
    if isinstance(schema, Mapping):
        found = {key: closed(value) for key, value in schema.items()}
        named = isinstance(found.get("properties"), dict) and "required" in found
        return {"additionalProperties": False, **found} if named else found
    return [closed(one) for one in schema] if isinstance(schema, list) else schema


def check(name: str, document: object) -> None:
    """Fail with everything in which the document differs from its schema."""
    said = json.loads(json.dumps(document))
    found = jsonschema.Draft202012Validator(closed(SCHEMAS[name])).iter_errors(said)
    errors = [f"{'/'.join(map(str, error.path))}: {error.message[:300]}" for error in found]
    assert not errors, "\n".join(errors)
    assert said["schema_version"] == version(SCHEMAS[name])
