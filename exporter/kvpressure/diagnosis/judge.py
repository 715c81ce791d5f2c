"""The verdict of one moment: the first true rule, and the rules before it that could not be judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.precedence import PRECEDENCE
from kvpressure.diagnosis.rules import Rule
from kvpressure.model.plugins import exported

BY_ID: Final[Mapping[str, Rule]] = {
    rule.id: rule for rules in exported("kvpressure.diagnosis.rules", "RULES") for rule in rules
}

TABLE: Final[tuple[Rule, ...]] = tuple(BY_ID[name] for name in PRECEDENCE)


class Judged(NamedTuple):
    """The first true rule, and the rules before it that are unknown."""

    rule: Rule
    unjudged: tuple[Rule, ...]


def judge(facts: Facts) -> Judged:
    """Return the first true rule of the table, with the unknown ones before it; later ones are not evaluated."""
    unjudged: list[Rule] = []
    for rule in TABLE:
        answer = rule.when.state(facts)
        if answer:
            return Judged(rule, tuple(unjudged))
        if answer is None:
            unjudged.append(rule)
    raise AssertionError("the last rule of the table is always true")
