"""`unknown`: what there is does not tell a cause, and this is what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kvpressure.diagnosis.facts import Facts, capital
from kvpressure.diagnosis.kleene import Predicate
from kvpressure.diagnosis.predicates import page, progress, queue, room
from kvpressure.diagnosis.rule import Rule, nothing_to_say
from kvpressure.diagnosis.wording import waiting
from kvpressure.model.verdict import Cause
from kvpressure.signals.canary import CANARY_UNANSWERED

EXPECTS: Final[Mapping[str, bool]] = {}
"""Nothing speaks for it: it is no cause."""


def _unknown(name: str, detail: str, when: Predicate, grounds: Callable[[Facts], str]) -> Rule:
    return Rule(f"unknown.{name}", Cause.UNKNOWN, detail, when, grounds, EXPECTS)


def _polls(facts: Facts) -> str:
    return f"{facts.window.polls} polls in {facts.window.seconds:.0f} s."


def _no_gauges(facts: Facts) -> str:  # noqa: ARG001 - as the others are called
    return "The page has no number of requests running, or none of those that wait."


def _layers_differ(facts: Facts) -> str:  # noqa: ARG001
    return "A request may take so much more of the cache than its tokens that it does not fit."


def _cold_start(facts: Facts) -> str:  # noqa: ARG001
    return "Requests wait, and none has ended yet to tell how long prompts are."


def _no_capacity(facts: Facts) -> str:
    return f"{capital(waiting(facts))}; the page does not tell how much the cache holds."


def _no_reasons(facts: Facts) -> str:
    return f"{capital(waiting(facts))}; the page does not tell what for."


RULES: Final = (
    _unknown("too_few_polls", "too_few_polls", page.too_few_polls, _polls),
    _unknown("no_activity", "no_gauges", page.activity_unknown, _no_gauges),
    _unknown("no_queue", "no_gauges", page.demand_unknown, _no_gauges),
    _unknown(
        "statistics_late",
        "statistics_late",
        progress.statistics_late,
        lambda facts: facts.text(CANARY_UNANSWERED),
    ),
    _unknown("layers_differ", "layers_differ", queue.queued & room.fit_uncertain, _layers_differ),
    _unknown("cold_start", "cold_start", queue.queued & ~room.fit_known & room.capacity_known, _cold_start),
    _unknown(
        "no_capacity",
        "no_capacity",
        queue.queued & ~room.fit_known & (~page.reasons_known | queue.queued_always),
        _no_capacity,
    ),
    _unknown("no_reasons", "no_reasons", queue.queued & ~page.reasons_known, _no_reasons),
    # They fit by one bound and not by the other.
    _unknown("bounds_disagree", "", queue.queued, nothing_to_say),
)
