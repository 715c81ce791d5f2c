"""The records of what was found: incidents, what would have fired, and how each of them looked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvpressure.model.action import Action
from kvpressure.model.limits import Limits
from kvpressure.model.verdict import Cause, Evidence, Missing

PICTURE_SERIES: Final = ("running", "waiting", "kv_usage_ratio", "tokens_per_second")
MAX_PICTURE_POINTS: Final = 180


@dataclass(frozen=True, slots=True)
class Fired:
    """An alert that would have fired: from `at` to `ended` (unix seconds; None while it still did at the end).

    `copied` ones are those that people copy, asked of the Prometheus itself; ours are judged from the verdicts.
    """

    rule: str
    at: float
    ended: float | None
    severity: str = ""
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """How an incident looked: unix seconds, and per series its values, None where not known."""

    times: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]]
    causes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class PastIncident:
    """A time of trouble of one engine.

    `began` and `ended` are when the verdict named it first and last, so both are late by a few samples; `ended` is None
    where it went on at the end of what was read. `cause` and `detail` held longest, `causes` says for how many seconds
    each did. `confidence` is the mean while it held. `lost_tokens`, and `lost_seconds` of healthy output, are None
    where nothing tells; `recomputed_tokens` of prompts, and `recomputed_seconds` of the engine's time for them, where
    the verdict told of no evictions. `peak` has the highest readings, and the most replicas that were desired in this
    one's place.
    """

    target: str
    labels: Mapping[str, str]
    namespace: str
    pod: str
    model_name: str
    engine: str
    cause: Cause
    detail: str
    grounds: str
    began: float
    ended: float | None
    seconds: float
    step_seconds: float
    causes: Mapping[Cause, float]
    confidence: float | None
    stage: str
    lost_tokens: float | None
    lost_seconds: float | None
    recomputed_tokens: float | None
    recomputed_seconds: float | None
    tokens_per_second: float | None
    restarted: bool
    peak: Mapping[str, float]
    symptoms: Mapping[str, Evidence]
    missing: tuple[Missing, ...]
    limits: Limits
    fired: tuple[Fired, ...] = ()
    actions: tuple[Action, ...] = ()
    picture: Picture | None = None
