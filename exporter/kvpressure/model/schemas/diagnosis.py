"""The schema of `/api/v1/diagnosis`, the parts of it that `incidents --json` shares, and the words to write them in."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from kvpressure.model.limits import Limits
from kvpressure.model.target_status import ReplicaState
from kvpressure.model.verdict import Cause, Stage

Schema = dict[str, Any]

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def _of(kind: str, text: str, **more: Any) -> Schema:
    return {"type": kind, "description": text, **more}


number = partial(_of, "number")
string = partial(_of, "string")
boolean = partial(_of, "boolean")
amount, ratio = partial(number, minimum=0), partial(number, minimum=0, maximum=1)


def count(text: str) -> Schema:
    """Return the schema of a whole number, 0 or more."""
    return {"type": "integer", "minimum": 0, "description": text}


def moment(text: str) -> Schema:
    """Return the schema of a time in unix seconds."""
    return number(f"{text} (unix seconds)")


def or_null(schema: Schema) -> Schema:
    """Return the schema of the same value, or null where it is not known."""
    kinds = schema.get("type")
    if kinds is None:
        return {"anyOf": [schema, {"type": "null"}]}
    nullable = {**schema, "type": [kinds, "null"]}
    return {**nullable, "enum": [*schema["enum"], None]} if "enum" in schema else nullable


def array(items: Schema, text: str) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items, "description": text}


def mapping(values: Schema, text: str) -> Schema:
    """Return the schema of an object whose keys are names."""
    return {"type": "object", "additionalProperties": values, "description": text}


def ref(name: str) -> Schema:
    """Return a reference to a shared schema."""
    return {"$ref": f"#/$defs/{name}"}


def keys(text: str = "", /, **properties: Schema) -> Schema:
    """Return the schema of an object with these keys, all of them required."""
    schema: Schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {**schema, "description": text} if text else schema


CAUSE: Final = string("What limits the engine.", enum=[cause.value for cause in Cause])
DETAIL: Final = or_null(string("Which kind of its cause, a word of docs/metrics.md; null where it is not known."))
STAGE: Final = string("How far KV cache pressure has gone.", enum=[stage.value for stage in Stage])
LABELS: Final = mapping({"type": "string"}, "Labels by name.")

_SHIFT: Final = keys(
    "A figure before and after a change; null where JSON cannot hold it.",
    before=or_null(number("As it is.")),
    after=or_null(number("As it is expected to be.")),
    low=or_null(number("The least that is expected.")),
    high=or_null(number("The most that is expected.")),
)

PARTS: Final[Schema] = {
    "derived": {
        "type": "object",
        "additionalProperties": {"anyOf": [{"type": "number"}, ref("derived")]},
        "description": "Values by name, nested by label value; what is not known has no key.",
    },
    "evidence": keys(
        "One symptom.",
        state=or_null(boolean("Whether the symptom shows; null where it cannot be judged.")),
        value=or_null(number("What was measured, in `unit`.")),
        threshold=or_null(number("What it was compared with, in `unit`.")),
        unit=string("ratio, sequences, seconds and so on; empty for what is no comparison."),
        text=string("What was measured, or what is missing, as a sentence."),
    ),
    "missing": keys(
        "Evidence that is not there.",
        what=string("What would have said more."),
        series=array({"type": "string"}, "The runtime's names for it; empty where its page has none."),
        how=string("How to get it."),
    ),
    "limit": or_null(
        keys("A limit in force; null where it is not known.", value=number("The limit."), source=string("Who says so."))
    ),
    "limits": keys("The limits in force.", **dict.fromkeys(Limits.__dataclass_fields__, ref("limit"))),
    "shift": _SHIFT,
    "expected": keys(
        "What a change is predicted to do.",
        text=string("In words."),
        tokens_per_second=ref("shift"),
        goodput=ref("shift"),
        latency_p95=ref("shift"),
        waiting=ref("shift"),
        refused_ratio=or_null(ratio("Share of the requests that would be refused.")),
        shortened_ratio=or_null(ratio("Share of the answers that would end early.")),
        limit_seconds=or_null(number("What an answer may take and still be in time.")),
        at_best=boolean("Whether it is the most that can come of it."),
    ),
    "action": keys(
        "One thing to do.",
        order=count("First things first."),
        key=string("What kind of action it is."),
        when=or_null(
            string("`now`, without a restart unless it is stuck, or `after_incident`; null for what changes nothing.")
        ),
        since=or_null(moment("Of the first step, since when it stands; null before it is settled")),
        revised=or_null(string("Of the first step, why another one stood before it; null where none did.")),
        title=string("What to do."),
        current=or_null(string("What it is now; null where nothing changes from a value to another.")),
        new=or_null(string("What it should be.")),
        why=string("Why."),
        cost=string("What it costs; empty for nothing."),
        flags=mapping({"type": "string"}, "The same as flags of the runtime."),
        commands=array({"type": "string"}, "Lines for a shell; comments begin with #."),
        placeholders=array({"type": "string"}, "What to replace in them."),
        verify=string("What must be observed afterwards, a line each."),
        expected=or_null(ref("expected")),
        not_predicted=or_null(string("For lack of what nothing is predicted.")),
    ),
}

VERSION: Final = "1.3"

_SINCE: Final = keys(
    "What came after it.", seconds=number("How long it has been."), tokens_per_second=number("Tokens a second since.")
)
_INCIDENT: Final = keys(
    "What trouble costs: the present time of it, or the last.",
    cause=CAUSE,
    began=moment("When it began"),
    ended=or_null(moment("When it ended; null while it continues")),
    seconds=number("How long it took."),
    tokens_per_second=number("Generated tokens a second during it."),
    lost_tokens=or_null(number("Tokens that were not generated; null where it is not known.")),
    lost_seconds=or_null(number("What they take the engine healthy.")),
    lost_money=or_null(number("What its GPUs cost for so long, in `currency`.")),
    recomputed_tokens=or_null(number("Prompt tokens evicted and computed again; null without such a verdict.")),
    recomputed_seconds=or_null(number("What computing them took of the engine's time.")),
    recomputed_money=or_null(number("What its GPUs cost for so long, in `currency`.")),
    currency=or_null(string("Of `lost_money` and `recomputed_money`.")),
    restarted=boolean("Whether another process has answered since it began."),
    since=or_null(_SINCE),
    earned_tokens_per_second=or_null(number("How many more came after it; null unless more did.")),
)
_ENGINE: Final = keys(
    "One engine, or a target of which no engine is known.",
    target=string("Whole name of what is polled."),
    namespace=or_null(string("Kubernetes namespace; empty without one.")),
    pod=or_null(string("Pod; empty without one.")),
    model_name=or_null(string("The model it serves.")),
    engine=or_null(string("Data-parallel rank.")),
    labels=LABELS,
    t=or_null(moment("Time of its newest page")),
    state=or_null(string("What the replica does; null where that is not known.", enum=[*ReplicaState])),
    answering=or_null(boolean("False while its page cannot be read; null before the first attempt.")),
    silent_seconds=or_null(number("Time since `t` while it does not answer.")),
    error=or_null(string("Why its page could not be read the last time.")),
    cause=or_null(CAUSE),
    detail=DETAIL,
    grounds=or_null(string("What shows the detail, or why nothing does.")),
    confidence=or_null(ratio("Share of the evidence available that agrees with the cause.")),
    score=or_null(ratio("KV pressure.")),
    stage=or_null(STAGE),
    since=or_null(moment("When the cause began to hold")),
    symptoms=mapping(ref("evidence"), "Every symptom by name."),
    missing=array(ref("missing"), "What would have said more."),
    derived=ref("derived"),
    limits=ref("limits"),
    actions=array(ref("action"), "What to do, in order."),
    incident=or_null(ref("incident")),
)
_GPU: Final = keys(
    "One GPU.",
    gpu_uuid=string("Its uuid."),
    gpu_index=string("The vendor's index."),
    vendor=string("nvidia or amd."),
    name=string("What it is."),
    profile=string("Of an instance of a split GPU, else empty."),
    parent_uuid=string("The GPU that it is an instance of, else empty."),
    derived=ref("derived"),
)

SCHEMA: Final[Schema] = {
    "$schema": DRAFT,
    "$id": f"urn:kvpressure:schema:diagnosis:{VERSION}",
    "title": "What /api/v1/diagnosis says",
    **keys(
        schema_version=string("Version of this schema: keys are only ever added within a major one."),
        t=moment("Time of the snapshot"),
        engines=array(ref("engine"), "Worst first."),
        gpus=array(ref("gpu"), "Every GPU that is read."),
    ),
    "$defs": {**PARTS, "incident": _INCIDENT, "engine": _ENGINE, "gpu": _GPU},
}
