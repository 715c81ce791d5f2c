"""The schema of `/api/v1/diagnosis`."""

from __future__ import annotations

from typing import Final

from kvpressure.model.schemas.parts import (
    CAUSE,
    DETAIL,
    DRAFT,
    LABELS,
    PARTS,
    STAGE,
    Schema,
    array,
    boolean,
    keys,
    mapping,
    moment,
    number,
    or_null,
    ratio,
    ref,
    string,
)

VERSION: Final = "1.1"

_SINCE: Final = keys(
    {"seconds": number("How long it has been."), "tokens_per_second": number("Tokens a second since.")},
    "What came after it.",
)
_INCIDENT: Final = keys(
    {
        "cause": CAUSE,
        "began": moment("When it began"),
        "ended": or_null(moment("When it ended; null while it goes on")),
        "seconds": number("How long it took."),
        "tokens_per_second": number("Generated tokens a second during it."),
        "lost_tokens": or_null(number("Tokens that were not generated; null where nothing tells.")),
        "lost_seconds": or_null(number("What they take the engine healthy.")),
        "lost_money": or_null(number("What its GPUs cost for so long, in `currency`.")),
        "recomputed_tokens": or_null(number("Prompt tokens evicted and computed again; null without such a verdict.")),
        "recomputed_seconds": or_null(number("What computing them took of the engine's time.")),
        "recomputed_money": or_null(number("What its GPUs cost for so long, in `currency`.")),
        "currency": or_null(string("Of `lost_money` and `recomputed_money`.")),
        "restarted": boolean("Whether another process has answered since it began."),
        "since": or_null(_SINCE),
        "earned_tokens_per_second": or_null(number("How many more came after it; null unless more did.")),
    },
    "What trouble costs: the present time of it, or the last.",
)
_ENGINE: Final = keys(
    {
        "target": string("Whole name of what is polled."),
        "namespace": or_null(string("Kubernetes namespace; empty without one.")),
        "pod": or_null(string("Pod; empty without one.")),
        "model_name": or_null(string("The model it serves.")),
        "engine": or_null(string("Data-parallel rank.")),
        "labels": LABELS,
        "t": or_null(moment("Time of its newest page")),
        "answering": or_null(boolean("False while its page cannot be read; null before the first attempt.")),
        "silent_seconds": or_null(number("Time since `t` while it does not answer.")),
        "error": or_null(string("Why its page could not be read the last time.")),
        "cause": or_null(CAUSE),
        "detail": DETAIL,
        "grounds": or_null(string("What tells the detail, or why nothing does.")),
        "confidence": or_null(ratio("Share of the evidence available that agrees with the cause.")),
        "score": or_null(ratio("KV pressure.")),
        "stage": or_null(STAGE),
        "since": or_null(moment("When the cause began to hold")),
        "symptoms": mapping(ref("evidence"), "Every symptom by name."),
        "missing": array(ref("missing"), "What would have told more."),
        "derived": ref("derived"),
        "limits": ref("limits"),
        "actions": array(ref("action"), "What to do, in order."),
        "incident": or_null(ref("incident")),
    },
    "One engine, or a target of which no engine is known.",
)
_GPU: Final = keys(
    {
        "gpu_uuid": string("Its uuid."),
        "gpu_index": string("The vendor's index."),
        "vendor": string("nvidia or amd."),
        "name": string("What it is."),
        "profile": string("Of an instance of a split GPU, else empty."),
        "parent_uuid": string("The GPU that it is an instance of, else empty."),
        "derived": ref("derived"),
    },
    "One GPU.",
)

SCHEMA: Final[Schema] = {
    "$schema": DRAFT,
    "$id": f"urn:kvpressure:schema:diagnosis:{VERSION}",
    "title": "What /api/v1/diagnosis says",
    **keys(
        {
            "schema_version": string("Version of this schema: keys are only ever added within a major one."),
            "t": moment("Time of the snapshot"),
            "engines": array(ref("engine"), "Worst first."),
            "gpus": array(ref("gpu"), "Every GPU that is read."),
        }
    ),
    "$defs": {**PARTS, "incident": _INCIDENT, "engine": _ENGINE, "gpu": _GPU},
}
