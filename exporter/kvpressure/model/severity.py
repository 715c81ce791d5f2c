"""Which engine is worst: one order for the page, the API, `triage` and the icon in the browser's tab."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvpressure.model.verdict import Cause, Diagnosis, Stage
from kvpressure.model.view import EngineView, Unreachable

CALM: Final = frozenset({Cause.IDLE, Cause.HEALTHY, Cause.PAUSED})
"""Causes that ask nothing of anybody."""

WORST_FIRST: Final = (
    Cause.STUCK,
    Cause.KV_CACHE_PRESSURE,
    Cause.HOST_BOUND,
    Cause.CONCURRENCY_BOUND,
    Cause.DEFERRED,
    Cause.COMPUTE_BOUND,
    Cause.UNKNOWN,
    Cause.PAUSED,
    Cause.HEALTHY,
    Cause.IDLE,
)
"""Causes by how much is lost while they hold; `unknown` is worse than calm, and better than any trouble."""


def cause_of(view: EngineView) -> Cause:
    """The cause; `unknown` for an engine that was not diagnosed."""
    return view.diagnosis.cause if view.diagnosis else Cause.UNKNOWN


def badness(diagnosis: Diagnosis | None, silence: Unreachable | None = None) -> tuple[int, int, float]:
    """Sorts the worst first: silent under demand, in trouble, unknown or silent, pressure building, calm.

    In trouble, the worse cause comes first, and of one cause the higher score.
    """
    cause = diagnosis.cause if diagnosis else Cause.UNKNOWN
    score = diagnosis.score if diagnosis and diagnosis.score is not None else 0.0
    if silence is not None:
        return (0, 0, 0.0) if silence.demand_requests else (2, 0, 0.0)
    if cause is Cause.UNKNOWN:
        return 2, 0, -score
    if cause not in CALM:
        return 1, WORST_FIRST.index(cause), -score
    building = diagnosis is not None and diagnosis.stage is not Stage.NONE
    return (3 if building else 4), WORST_FIRST.index(cause), -score


def worst_first(views: Iterable[EngineView]) -> list[EngineView]:
    """Engines by badness; names decide among equals, so that a refresh moves nothing without a reason."""
    return sorted(views, key=lambda view: (*badness(view.diagnosis, view.silence), view.key))
