"""What the page lets anybody judge."""

from __future__ import annotations

from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.kleene import fact
from kvpressure.diagnosis.predicates.symptoms import REASONS

MIN_POLLS: Final = 4
"""Fewer make no verdict, however far apart."""


@fact()
def always(facts: Facts) -> bool:  # noqa: ARG001 - as the others are called
    """Return True: the last rule holds where no other does."""
    return True


@fact()
def too_few_polls(facts: Facts) -> bool:
    """Fewer polls than a verdict needs: the least number, or, where polls are rare, a whole window of a few."""
    window, thresholds = facts.window, facts.thresholds
    rare = window.polls >= MIN_POLLS and window.seconds >= thresholds.verdict_window_seconds
    return window.polls < thresholds.verdict_min_poll_count and not rare


@fact("running")
def activity_unknown(facts: Facts) -> bool:
    """Return whether the page has not told whether there is anything to do."""
    return facts.window.busy is None


@fact("running")
def demand_unknown(facts: Facts) -> bool:
    """Return whether the page has no number of requests running, or none of those that wait."""
    return facts.window.queue.demand is None


@fact()
def busy(facts: Facts) -> bool | None:
    """Return whether requests run or wait, or work was done."""
    return facts.window.busy


@fact(REASONS)
def reasons_known(facts: Facts) -> bool:
    """Return whether the page tells whether requests wait for a place in the batch or were put off."""
    return facts.window.queue.reasons_known
