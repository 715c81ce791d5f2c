"""`deferred`: requests wait for something outside the batch, on their own account."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.kleene import Predicate
from kvpressure.diagnosis.predicates import batch, page, queue, symptoms
from kvpressure.diagnosis.rule import Rule
from kvpressure.model.values import number
from kvpressure.model.verdict import Cause

EXPECTS: Final[Mapping[str, bool]] = {"admission_blocked": False, "kv_saturated": False, "preempting": False}

_fetching = queue.queued & queue.mostly_fetching & ~symptoms.preempting.taken_as(False)
_deferred = queue.queued & ~batch.at_cap & queue.mostly_deferred
_must_be = queue.queued & ~page.reasons_known & queue.must_be_deferred
"""No page tells what they wait for, and nothing else is left."""


def _rule(name: str, detail: str, when: Predicate, grounds: Callable[[Facts], str]) -> Rule:
    return Rule(f"deferred.{name}", Cause.DEFERRED, detail, when, grounds, EXPECTS)


def _from_elsewhere(prefix: str, when: Predicate, share: Callable[[Facts], str]) -> tuple[Rule, ...]:
    """KV from elsewhere, by the connector that shows."""
    return (
        _rule(
            f"{prefix}remote_kv",
            "remote_kv",
            when & queue.remote_kv_shows,
            lambda facts: f"{share(facts)}; a connector to other engines is in use.",
        ),
        _rule(
            f"{prefix}offload",
            "offload",
            when & queue.offload_shows,
            lambda facts: f"{share(facts)}; an offload tier is in use.",
        ),
        _rule(
            f"{prefix}external_kv",
            "external_kv",
            when,
            lambda facts: f"{share(facts)}; {_which(facts)}.",
        ),
    )


def _which(facts: Facts) -> str:
    both = facts.window.deferral.remote
    return "both other engines and an offload tier are in use" if both else "no connector says what it is"


def _fetched(facts: Facts) -> str:
    return f"{facts.window.queue.fetching_ratio or 0.0:.0%} of those that wait wait for KV from elsewhere"


def _brought(facts: Facts) -> str:
    return f"{facts.window.deferral.brought_ratio or 0.0:.0%} of the prompts' tokens come from elsewhere"


def _slots(facts: Facts) -> str:
    slots = number(facts.window.deferral.slots or 0.0)
    return f"All {slots} slots for adapters are taken, and more adapters are asked for."


def _several(facts: Facts) -> str:
    possible = {
        "KV from elsewhere": queue.kv_from_elsewhere_possible,
        "a slot for an adapter": queue.slot_possible,
        "room for an image": queue.image_possible,
    }
    left = [kind for kind, may_be in possible.items() if may_be.state(facts)]
    return f"For a grammar or {' or '.join(left)}: the page does not tell which."


def _grammar(facts: Facts) -> str:  # noqa: ARG001 - as the others are called
    return "Nothing else is left: no KV comes from elsewhere, no slot is short, no image was sent."


def _steps(facts: Facts) -> str:
    steps = number(round(facts.window.queue.waited_steps or 0.0))
    return f"They fit, and wait for {steps} steps: for a grammar, or behind one that a limit holds back."


RULES: Final = (
    *_from_elsewhere("", _fetching, _fetched),
    _rule("lora_slots", "lora_slots", _deferred & queue.adapters_lack_slots, _slots),
    _rule("several_kinds", "", _deferred & queue.several_kinds_possible, _several),
    _rule("grammar", "grammar", _deferred, _grammar),
    _rule("must_be_lora_slots", "lora_slots", _must_be & queue.adapters_lack_slots, _slots),
    *_from_elsewhere("must_be_", _must_be & queue.mostly_brought, _brought),
    _rule("must_be_several_kinds", "", _must_be & queue.several_kinds_possible, _several),
    _rule("must_be_deferred", "", _must_be, _steps),
)
