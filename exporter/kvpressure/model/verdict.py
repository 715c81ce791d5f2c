"""What a diagnosis says: the symptoms with their evidence, one cause, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kvpressure.model.record import record


class Cause(StrEnum):
    """What limits an engine now; exactly one holds."""

    IDLE = "idle"
    HEALTHY = "healthy"
    KV_CACHE_PRESSURE = "kv_cache_pressure"
    COMPUTE_BOUND = "compute_bound"
    CONCURRENCY_BOUND = "concurrency_bound"
    HOST_BOUND = "host_bound"
    DEFERRED = "deferred"
    PAUSED = "paused"
    STUCK = "stuck"
    UNKNOWN = "unknown"


DETAILS: Final[Mapping[Cause, Mapping[str, str]]] = {
    Cause.IDLE: {"streams": "open sessions wait for their next piece of input"},
    Cause.HEALTHY: {},
    Cause.KV_CACHE_PRESSURE: {
        "stranded": "nothing runs: the cache is full of blocks of requests that have finished, or have not started",
        "preemption": "running requests are preempted, and their KV is recomputed later",
        "watermark": "waiting requests would fit if the watermark did not keep part of the cache free",
        "admission": "waiting requests do not fit into the free KV cache",
        "full": "the KV cache is full while requests wait",
    },
    Cause.COMPUTE_BOUND: {
        "prefill": "most of the compute goes into prompts (prefill)",
        "decode": "most of the compute goes into generation",
    },
    Cause.CONCURRENCY_BOUND: {
        "max_num_seqs": "the batch is at max_num_seqs, and more requests wait",
        "sequence_cap": "the batch is held at a fixed size; which flag sets it is not known",
        "prefill_budget": "every step uses up max_num_batched_tokens before the queue is empty",
        "head_of_line": "the step has room, but the first request in the queue is not admitted and blocks the rest",
        "queue_limit": "the queue limit rejects requests (503) before the batch is full",
    },
    Cause.HOST_BOUND: {"front_end": "the API server process is slow", "cpu": "not enough CPU"},
    Cause.DEFERRED: {
        "remote_kv": "waiting for KV from another engine",
        "offload": "waiting for KV from an offload tier",
        "external_kv": "waiting for KV from outside; the metrics do not say from where",
        "lora_slots": "no LoRA slot is free for their adapter",
        "grammar": "their structured-output grammar is being compiled",
    },
    Cause.PAUSED: {
        "asleep": "asleep, falling asleep or waking up",
        "weight_update": "new weights are being loaded",
        "pause_call": "paused through the API",
    },
    Cause.STUCK: {
        "frozen": "requests are running, and no metric moves",
        "looping": "requests are running, and no token comes out",
        "nothing_runs": "requests wait, and none is running",
        "unanswered": "the metrics look idle, and a one-token request got no answer",
    },
    Cause.UNKNOWN: {
        "too_few_polls": "too few polls so far",
        "statistics_late": "the metrics do not move, but a one-token request was answered",
        "no_gauges": "the metrics lack the number of running or waiting requests",
        "layers_differ": "a hybrid model: token counts do not tell how much cache a request needs",
        "no_capacity": "the metrics do not say how much the KV cache holds",
        "cold_start": "no request has finished yet, so prompt lengths are not known",
        "no_reasons": "the metrics do not say why requests wait",
    },
}
"""Which kind of its cause holds: the fixed vocabulary of the label `detail`, and what each means, for people.

"" stands beside them for "not known which", and is all there is where a cause is of one kind only.
"""


class Stage(StrEnum):
    """How far KV cache pressure has gone."""

    NONE = "none"
    BUILDING = "building"
    COLLAPSED = "collapsed"
    FAILING = "failing"


@record
class Evidence:
    """One symptom. `state` is None when it cannot be judged; `text` says in words what was seen or what is missing.

    `value` and `threshold` are in `unit` (ratio, sequences, seconds, ...), None where the symptom is no comparison.
    """

    symptom: str
    state: bool | None
    text: str
    value: float | None = None
    threshold: float | None = None
    unit: str = ""


@record
class Missing:
    """Evidence that would bear on a verdict and is not there: what it is, for people, and how to get it.

    `series` are the runtime's names for it, () where it does not come from the engine's page.
    """

    what: str
    how: str
    series: tuple[str, ...] = ()


@record
class Diagnosis:
    """The verdict on one engine at time `t`; `since` is when its cause began to hold (unix seconds).

    `score` is KV pressure, 0..1, None when the engine tells nothing of its cache; `confidence` is the share of the
    evidence available that agrees with the cause, 0..1. `symptoms` has every symptom, judged or not, in a fixed order.

    `detail` is which kind of the cause, a word of `DETAILS` or "", and `grounds` says what tells so, or why nothing
    does, in words ("" where there is nothing to say). `missing` is what would have told more.
    """

    t: float
    since: float
    cause: Cause
    confidence: float
    score: float | None
    stage: Stage
    symptoms: Mapping[str, Evidence]
    detail: str = ""
    grounds: str = ""
    missing: tuple[Missing, ...] = ()
