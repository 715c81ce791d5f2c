"""The verdict of one moment: the first rule that holds, and the rules before it that could not be judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.precedence import PRECEDENCE
from kvpressure.diagnosis.rules import Rule
from kvpressure.model.record import exported

BY_ID: Final[Mapping[str, Rule]] = {
    rule.id: rule for rules in exported("kvpressure.diagnosis.rules", "RULES") for rule in rules
}

TABLE: Final[tuple[Rule, ...]] = tuple(BY_ID[name] for name in PRECEDENCE)


class Judged(NamedTuple):
    """The rule that holds, and those before it of which nobody knows whether they do."""

    rule: Rule
    unjudged: tuple[Rule, ...]


def judge(facts: Facts) -> Judged:
    """Return the first rule of the table that holds, asked in its order and no further."""
    unjudged: list[Rule] = []
    for rule in TABLE:
        answer = rule.when.state(facts)
        if answer:
            return Judged(rule, tuple(unjudged))
        if answer is None:
            unjudged.append(rule)
    raise AssertionError("the last rule of the table always holds")
