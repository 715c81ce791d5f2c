"""Which engine is worst: one order for the page, the API, `triage` and the icon in the browser's tab."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvpressure.model.catalogue import CATALOGUE, NOT_KNOWN, those
from kvpressure.model.verdict import Cause, Diagnosis, Stage
from kvpressure.model.view import EngineView, Unreachable

CALM: Final = those(lambda row: row.calm)
"""Causes that ask nothing of anybody."""

TROUBLE: Final = those(lambda row: row.known and not row.calm)
"""Causes that somebody has to do something about; not where none could be named."""


def cause_of(view: EngineView) -> Cause:
    """Return the cause; `unknown` for an engine that was not diagnosed."""
    return view.diagnosis.cause if view.diagnosis else NOT_KNOWN


def badness(diagnosis: Diagnosis | None, silence: Unreachable | None = None) -> tuple[int, int, float]:
    """Return a sort key, worst first: silent under demand, in trouble, unknown or silent, pressure building, calm.

    In trouble, the worse cause comes first, and of one cause the higher score.
    """
    cause = diagnosis.cause if diagnosis else NOT_KNOWN
    score = diagnosis.score if diagnosis and diagnosis.score is not None else 0.0
    if silence is not None:
        return (0, 0, 0.0) if silence.demand_requests else (2, 0, 0.0)
    row = CATALOGUE[cause]
    if not row.known:
        return 2, 0, -score
    if not row.calm:
        return 1, row.rank, -score
    building = diagnosis is not None and diagnosis.stage is not Stage.NONE
    return (3 if building else 4), row.rank, -score


def worst_first(views: Iterable[EngineView]) -> list[EngineView]:
    """Return engines by badness; names decide among equals, so that a refresh moves nothing without a reason."""
    return sorted(views, key=lambda view: (*badness(view.diagnosis, view.silence), view.key))
