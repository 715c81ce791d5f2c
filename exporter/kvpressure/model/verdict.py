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
        "stranded": "nothing runs; blocks of requests that have ended, or have not begun, fill the cache",
        "preemption": "requests are thrown out of the batch to be computed again",
        "watermark": "waiting requests would fit but for the share of the cache that is kept free",
        "admission": "waiting requests do not fit the free cache",
        "full": "the cache is full while requests wait",
    },
    Cause.COMPUTE_BOUND: {"prefill": "steps are full of prompts", "decode": "steps are full of answers"},
    Cause.CONCURRENCY_BOUND: {
        "max_num_seqs": "the batch stays at the most sequences it may have",
        "sequence_cap": "the batch stays at its highest; which flag holds it there is not known",
        "prefill_budget": "each step's tokens are spent before the queue is through",
        "head_of_line": "steps have tokens to spare, but the first in the queue is not taken; the rest wait behind it",
        "queue_limit": "requests are refused at a limit of the queue, and hardly any wait",
    },
    Cause.HOST_BOUND: {"front_end": "the API process is slow", "cpu": "CPUs are short"},
    Cause.DEFERRED: {
        "remote_kv": "KV is on its way from another engine",
        "offload": "KV is on its way from an offload tier",
        "external_kv": "KV is on its way from elsewhere; the page does not tell from where",
        "lora_slots": "no slot is free for their adapter",
        "grammar": "their grammar is being compiled",
    },
    Cause.PAUSED: {
        "asleep": "asleep, or on its way there or back",
        "weight_update": "new weights are being loaded",
        "pause_call": "somebody called pause",
    },
    Cause.STUCK: {
        "frozen": "requests run, and nothing on the page moves",
        "looping": "requests run, and nothing comes out",
        "nothing_runs": "requests wait, and none runs",
        "unanswered": "the page is idle, and a request of one token got no answer",
    },
    Cause.UNKNOWN: {
        "too_few_polls": "it has not been read often enough",
        "statistics_late": "the page stands still, and a request of one token was answered",
        "no_gauges": "the page lacks the requests running or waiting",
        "layers_differ": "its layers keep different things, so tokens do not tell what a request takes of the cache",
        "cold_start": "no request has told yet how long prompts are",
        "no_reasons": "the page does not tell why requests wait",
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
