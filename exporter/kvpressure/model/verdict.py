"""What a diagnosis says: the symptoms with their evidence, one cause, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


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


class Stage(StrEnum):
    """How far KV cache pressure has gone."""

    NONE = "none"
    BUILDING = "building"
    COLLAPSED = "collapsed"
    FAILING = "failing"


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on one engine at time `t`; `since` is when its cause began to hold (unix seconds).

    `score` is KV pressure, 0..1, None when the engine tells nothing of its cache; `confidence` is the share of the
    evidence available that agrees with the cause, 0..1. `symptoms` has every symptom, judged or not, in a fixed order.
    """

    t: float
    since: float
    cause: Cause
    confidence: float
    score: float | None
    stage: Stage
    symptoms: Mapping[str, Evidence]
