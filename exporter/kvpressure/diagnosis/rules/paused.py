"""`paused`: somebody has stopped the engine on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.diagnosis.kleene import Predicate
from kvpressure.diagnosis.predicates import progress
from kvpressure.diagnosis.rule import Rule
from kvpressure.model.verdict import Cause

EXPECTS: Final[Mapping[str, bool]] = {"preempting": False}


def _paused(detail: str, when: Predicate, grounds: str) -> Rule:
    return Rule(f"paused.{detail}", Cause.PAUSED, detail, when, lambda _: grounds, EXPECTS)


RULES: Final = (
    _paused("asleep", progress.asleep, "The page says that it sleeps, or that an operation to that end is under way."),
    _paused(
        "weight_update",
        progress.paused_by("weight_update"),
        "The page says that an operation that loads new weights is under way.",
    ),
    _paused(
        "pause_call",
        progress.paused_by("pause_call"),
        "Its web server has counted more calls of /pause than of /resume.",
    ),
)
