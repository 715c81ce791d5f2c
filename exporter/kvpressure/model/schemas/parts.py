"""Parts that the schemas share, and the words to write them in."""

from __future__ import annotations

from typing import Any, Final

from kvpressure.model.limits import Limits
from kvpressure.model.verdict import DETAILS, Cause, Stage

Schema = dict[str, Any]

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def number(text: str, **more: Any) -> Schema:
    """Return the schema of a number."""
    return {"type": "number", "description": text, **more}


def string(text: str, **more: Any) -> Schema:
    """Return the schema of a string."""
    return {"type": "string", "description": text, **more}


def boolean(text: str) -> Schema:
    """Return the schema of a boolean."""
    return {"type": "boolean", "description": text}


def count(text: str) -> Schema:
    """Return the schema of a whole number, 0 or more."""
    return {"type": "integer", "minimum": 0, "description": text}


def ratio(text: str) -> Schema:
    """Return the schema of a ratio from 0 to 1."""
    return number(text, minimum=0, maximum=1)


def moment(text: str) -> Schema:
    """Return the schema of a time in unix seconds."""
    return number(f"{text} (unix seconds)")


def or_null(schema: Schema) -> Schema:
    """Return the schema of the same value, or null where it is not known."""
    kinds = schema.get("type")
    if kinds is None:
        return {"anyOf": [schema, {"type": "null"}]}
    found = {**schema, "type": [kinds, "null"]}
    return {**found, "enum": [*schema["enum"], None]} if "enum" in schema else found


def array(items: Schema, text: str) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items, "description": text}


def mapping(values: Schema, text: str) -> Schema:
    """Return the schema of an object whose keys are names."""
    return {"type": "object", "additionalProperties": values, "description": text}


def ref(name: str) -> Schema:
    """Return a reference to a shared schema."""
    return {"$ref": f"#/$defs/{name}"}


def keys(properties: Schema, text: str = "", *, optional: tuple[str, ...] = ()) -> Schema:
    """Return the schema of an object with these keys, all of them required but the `optional`."""
    required = [name for name in properties if name not in optional]
    found: Schema = {"type": "object", "properties": properties, "required": required}
    return {**found, "description": text} if text else found


CAUSE: Final = string("What limits the engine.", enum=[cause.value for cause in Cause])
DETAIL: Final = or_null(
    string(
        "Which kind of its cause; null where nothing tells.",
        enum=sorted({word for words in DETAILS.values() for word in words}),
    )
)
STAGE: Final = string("How far KV cache pressure has gone.", enum=[stage.value for stage in Stage])
LABELS: Final = mapping({"type": "string"}, "Labels by name.")

_SHIFT: Final = keys(
    {
        "before": or_null(number("As it is.")),
        "after": or_null(number("As it is expected to be.")),
        "low": or_null(number("The least that is expected.")),
        "high": or_null(number("The most that is expected.")),
    },
    "A figure before and after a change; null where JSON cannot hold it.",
)

PARTS: Final[Schema] = {
    "derived": {
        "type": "object",
        "additionalProperties": {"anyOf": [{"type": "number"}, ref("derived")]},
        "description": "Values by name, nested by label value; what is not known has no key.",
    },
    "evidence": keys(
        {
            "state": or_null(boolean("Whether the symptom shows; null where it cannot be judged.")),
            "value": or_null(number("What was seen, in `unit`.")),
            "threshold": or_null(number("What it was compared with, in `unit`.")),
            "unit": string("ratio, sequences, seconds and so on; empty for what is no comparison."),
            "text": string("What was seen, or what is missing, as a sentence."),
        },
        "One symptom.",
    ),
    "missing": keys(
        {
            "what": string("What would have told more."),
            "series": array({"type": "string"}, "The runtime's names for it; empty where its page has none."),
            "how": string("How to get it."),
        },
        "Evidence that is not there.",
    ),
    "limit": or_null(
        keys(
            {"value": number("The limit."), "source": string("Who says so.")},
            "A limit in force; null where it is not known.",
        )
    ),
    "limits": keys({name: ref("limit") for name in Limits.__dataclass_fields__}, "The limits in force."),
    "shift": _SHIFT,
    "expected": keys(
        {
            "text": string("In words."),
            "tokens_per_second": ref("shift"),
            "goodput": ref("shift"),
            "latency_p95": ref("shift"),
            "waiting": ref("shift"),
            "refused_ratio": or_null(ratio("Share of the requests that would be refused.")),
            "shortened_ratio": or_null(ratio("Share of the answers that would end early.")),
            "limit_seconds": or_null(number("What an answer may take and still be in time.")),
            "at_best": boolean("Whether it is the most that can come of it."),
        },
        "What a change is predicted to do.",
    ),
    "action": keys(
        {
            "order": count("First things first."),
            "key": string("What kind of action it is."),
            "title": string("What to do."),
            "current": or_null(string("What it is now; null where nothing changes from a value to another.")),
            "new": or_null(string("What it should be.")),
            "why": string("Why."),
            "cost": string("What it costs; empty for nothing."),
            "flags": mapping({"type": "string"}, "The same as flags of the runtime."),
            "commands": array({"type": "string"}, "Lines for a shell; comments begin with #."),
            "placeholders": array({"type": "string"}, "What to replace in them."),
            "verify": string("What must be seen afterwards, a line each."),
            "expected": or_null(ref("expected")),
            "not_predicted": or_null(string("For lack of what nothing is predicted.")),
        },
        "One thing to do.",
    ),
}
