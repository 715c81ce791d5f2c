"""Rules, a file for each cause or source. Here: a row of their table, and phrases that the grounds of several have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kvpressure.diagnosis.facts import Facts, Inputs
from kvpressure.diagnosis.predicates import Predicate
from kvpressure.model.values import number
from kvpressure.model.verdict import Cause, Missing

Grounds = Callable[[Facts], str]


@dataclass(frozen=True, slots=True)
class Rule:
    """When a verdict has a cause and a detail, the sentence that says why, and the symptoms that should go with it.

    `detail` is a word of `verdict.DETAILS` or "" where not known; `grounds` then says what it may be. `expects` are
    symptoms and their states where the rule is right: confidence is the share that agrees. `has_lasted`: its condition
    has lasted when it is true, so that the verdict need not wait for it.
    """

    id: str
    cause: Cause
    detail: str
    when: Predicate
    grounds: Grounds
    expects: Mapping[str, bool]
    has_lasted: bool = False


class EvidenceSource(NamedTuple):
    """A source of the `evidence` that predicates name, what to do where it is `missing`, and whether it is there."""

    evidence: str
    missing: Missing
    there: Callable[[Inputs], bool]


def rules_of(
    cause: Cause, prefix: str, expects: Mapping[str, bool], *rows: tuple[str, str, Predicate, Grounds]
) -> tuple[Rule, ...]:
    """Return the rules of a cause; a row is the name after the `prefix` of the id, detail, predicate and grounds."""
    return tuple(Rule(f"{prefix}.{name}", cause, detail, when, said, expects) for name, detail, when, said in rows)


def nothing_to_say(facts: Facts) -> str:  # noqa: ARG001 - as the others are called
    """Return no grounds."""
    return ""


def same(text: str) -> Grounds:
    """Return grounds that are the same whatever the facts are."""
    return lambda _: text


def of_symptom(symptom: str) -> Grounds:
    """Return the text of a symptom as grounds."""
    return lambda facts: facts.text(symptom)


def waiting(facts: Facts) -> str:
    """Return how many requests wait, as words."""
    many = facts.window.queue.waiting
    return "requests wait" if many is None else f"{number(round(many))} requests wait"


def running_and_waiting(facts: Facts) -> str:
    """Return how many run and how many wait, as a sentence; "" where that is not known."""
    demand, queued = facts.window.queue.demand, facts.window.queue.waiting
    if demand is None or queued is None:
        return ""
    return f"{number(round(demand - queued))} requests run, {number(round(queued))} wait."


def dropped(facts: Facts) -> str:
    """Return how many stores into an offload tier were dropped, as a sentence; "" where none was."""
    many = facts.window.deferral.dropped_stores
    return f" {number(many)} stores into it were dropped in the last minutes: it had no room." if many else ""


def loading(facts: Facts) -> str:
    """Return how many loads from an offload tier are under way, as a sentence; "" where none is, or not known."""
    loads = facts.window.deferral.loads
    return f" {number(loads)} loads from it are under way at a time." if loads else ""


def expired(facts: Facts) -> str:
    """Return how many finished prompts expired because nobody fetched them, as a sentence; "" where none did."""
    many = facts.window.deferral.expired_transfers
    return f" {number(many)} finished prompts expired in the last minutes: nobody fetched them." if many else ""
