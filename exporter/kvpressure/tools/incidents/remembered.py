"""PURE: what a --resume file may hold, by the kind of piece: JSON to values, ValueError for anything else.

Its digests tell of damage. What stands in a file that somebody else wrote is no more trusted than an answer is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from kvpressure.model.schemas.fit import misfit
from kvpressure.model.schemas.incidents import SCHEMA
from kvpressure.model.verdict import Cause
from kvpressure.tools.incidents.names import Json

MAX_SECONDS: Final = 1e12

_Time = Annotated[float, Field(strict=True, ge=-MAX_SECONDS, le=MAX_SECONDS)]
_Text = Annotated[str, StringConstraints(strict=True)]
_Span = tuple[_Time, _Time]
_Warning = Annotated[str, StringConstraints(strict=True, max_length=300)]

ScreenRows = list[tuple[list[tuple[_Text, _Text]], list[_Span]]]
"""Labels of a target, and where a screen has a value."""

RuleRows = list[tuple[tuple[_Text, _Text, _Text], list[_Span]]]
"""Target, model and rank of an engine, and when a rule's expression holds."""

ToldRows = list[tuple[dict[_Text, _Text], list[tuple[_Time, _Time, Annotated[int, Field(strict=True, ge=1)]]]]]
"""Labels of an exporter's series, and begin, end and number of its samples."""


def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return what gives values of a kind, and raises ValueError for others."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def read(value: Any) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            place = "".join(f"[{part}]" for part in error.errors(include_url=False)[0]["loc"] if isinstance(part, int))
            raise ValueError(f"it{place} is not what belongs there") from None

    return read


screen_rows: Final[Callable[[Any], ScreenRows]] = _reader(ScreenRows)
rule_rows: Final[Callable[[Any], RuleRows]] = _reader(RuleRows)
told_rows: Final[Callable[[Any], ToldRows]] = _reader(ToldRows)
warnings: Final[Callable[[Any], list[str]]] = _reader(Annotated[list[_Warning], Field(max_length=1000)])

_INCIDENTS: Final = {"type": "array", "items": {"$ref": "#/$defs/incident"}}
_TARGET: Final = {
    "type": "object",
    "required": ["incidents", "others", "unjudged", "samples", "unread", "warnings"],
    "properties": {
        "incidents": _INCIDENTS,
        "others": {"type": "array", "items": _INCIDENTS},
        "unjudged": SCHEMA["properties"]["unjudged"],
        "samples": {"type": "integer", "minimum": 0},
        "unread": {"type": "string"},
        "warnings": {"type": "array", "items": {"type": "string"}},
    },
}
_CAUSES: Final = frozenset(cause.value for cause in Cause)


def target_found(settings: int) -> Callable[[Any], Json]:
    """Return what reads the outcome of one target, judged by so many settings of thresholds."""

    def read(value: Any) -> Json:
        if why := misfit(_TARGET, value, SCHEMA["$defs"]):
            raise ValueError(why)
        if len(value["others"]) != settings - 1:
            raise ValueError("it was judged by another number of thresholds")
        for its in (value["incidents"], *value["others"]):
            for one in its:
                _check(one)
        found: Json = value
        return found

    return read


def _check(incident: Json) -> None:
    """Raise ValueError for what a schema cannot say."""
    picture = incident["picture"]
    if picture is not None and len({len(values) for values in picture.values()}) != 1:
        raise ValueError("a picture's series differ in length")
    if not _CAUSES.issuperset(incident["causes"]) or incident["cause"] not in incident["causes"]:
        raise ValueError("its causes are none")
    times = [incident["began"], incident["seconds"], *([] if incident["ended"] is None else [incident["ended"]])]
    if not all(abs(t) <= MAX_SECONDS for t in times):
        raise ValueError("a time is none")
