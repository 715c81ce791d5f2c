"""The verdict of one moment: the first rule that holds, and the rules before it that could not be judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Final, NamedTuple

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.kleene import AllOf, Predicate
from kvpressure.diagnosis.precedence import PRECEDENCE
from kvpressure.diagnosis.rule import Rule
from kvpressure.diagnosis.rules import bounds, calm, deferred, kv_cache_pressure, stuck, unknown

_FILES: Final = (calm, unknown, stuck, deferred, kv_cache_pressure, bounds)
BY_ID: Final[Mapping[str, Rule]] = {rule.id: rule for file in _FILES for rule in file.RULES}

TABLE: Final[tuple[Rule, ...]] = tuple(BY_ID[name] for name in PRECEDENCE)

_Ask = Callable[[Facts], bool | None]


class Judged(NamedTuple):
    """The rule that holds, and those before it of which nobody knows whether they do."""

    rule: Rule
    unjudged: tuple[Rule, ...]


class _Block(NamedTuple):
    """Rules in a row that ask the same first: where that is False, none of them holds."""

    gate: _Ask
    rows: tuple[tuple[_Ask, Rule], ...]
    after_gate: tuple[tuple[_Ask, Rule], ...]
    """The same, with what is left to ask once the first question is answered with yes."""


def judge(facts: Facts) -> Judged:
    """Return the first rule of the table that holds, asked in its order and no further."""
    unjudged: list[Rule] = []
    for gate, whole, after_gate in _BLOCKS:
        opened = gate(facts)
        if opened is False:
            continue
        for state, rule in after_gate if opened else whole:
            answer = state(facts)
            if answer:
                return Judged(rule, tuple(unjudged))
            if answer is None:
                unjudged.append(rule)
    raise AssertionError("the last rule of the table always holds")


def _first_question(rule: Rule) -> Predicate:
    when = rule.when
    return when.parts[0] if isinstance(when, AllOf) else when


def _rest(rule: Rule) -> Predicate:
    when = rule.when
    if not isinstance(when, AllOf):
        return when
    _, *rest = when.parts
    return rest[0] if len(rest) == 1 else AllOf(*rest)


def _blocks(table: Iterable[Rule]) -> Iterable[_Block]:
    for gate, group in groupby(table, _first_question):
        rules = tuple(group)
        whole = tuple((rule.when.state, rule) for rule in rules)
        yield _Block(gate.state, whole, tuple((_rest(rule).state, rule) for rule in rules))


_BLOCKS: Final = tuple(_blocks(TABLE))
