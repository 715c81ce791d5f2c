"""How sure a verdict is: how many of the symptoms that should go with its rule do."""

from __future__ import annotations

from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.rule import Rule
from kvpressure.signals.canary import CANARY_UNANSWERED

KV_SHOWS: Final = "kv_shows"
"""Any one of these is how KV pressure shows; that the others do not is no evidence against it."""

_KV: Final = ("admission_blocked", "preempting", "kv_saturated", "evicting")


def confidence(rule: Rule, facts: Facts) -> float:
    """Share of the evidence that agrees with the rule; what is not known counts a little against it.

    Fewer polls than make a full verdict lower it, down to `sparse_confidence_min_ratio`.
    """
    least = facts.thresholds.sparse_confidence_min_ratio
    return _agreement(rule, facts) * (least + (1.0 - least) * facts.window.coverage)


def _agreement(rule: Rule, facts: Facts) -> float:
    unknown, agree, counted = facts.thresholds.confidence_unknown_weight_ratio, 0.0, 0.0
    for name, wanted in rule.expects.items():
        state, weight = _weighed(name, facts)
        agree += weight if state is wanted else 0.0
        counted += unknown * min(weight, 1.0) if state is None else weight
    return agree / counted if counted else 0.0  # nothing is known, and an operator let that count nothing


def _weighed(name: str, facts: Facts) -> tuple[bool | None, float]:
    """Whether a symptom holds, and how much that counts."""
    core = facts.thresholds.confidence_core_weight_factor
    if name == KV_SHOWS:
        return any(facts.symptom(symptom) for symptom in _KV), core
    if name == CANARY_UNANSWERED:
        # Nothing shows more directly that an engine answers nobody; that nobody asked it says nothing.
        return (True, core) if facts.symptom(name) else (None, 0.0)
    return facts.symptom(name), 1.0
