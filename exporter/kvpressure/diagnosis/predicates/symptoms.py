"""Symptoms that rules read, as predicates."""

from __future__ import annotations

from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.predicates import Fact, Predicate, fact

REASONS: Final = "waiting_deferred"

LENGTHS: Final = "request_prompt_tokens_histogram"

FIT: Final = ("capacity_tokens", "computed_prompt_tokens", LENGTHS)


def symptom(name: str, *evidence: str) -> Predicate:
    """Return a predicate: whether a symptom is there."""
    return Fact(lambda facts: facts.symptom(name), *evidence)


admission_blocked = symptom("admission_blocked", *FIT, REASONS)


@fact("kv_usage")
def usage_saturated(facts: Facts) -> bool | None:
    """Return whether the cache is full, with a queue or without."""
    usage = facts.window.kv_usage_ratio
    return None if usage is None else usage >= facts.thresholds.symptoms.kv_saturated_min_ratio


preempting = symptom("preempting")

kv_saturated = symptom("kv_saturated")

evicting = symptom("evicting").known_true()


@fact("timed_evictions", "kv_events")
def may_evict(facts: Facts) -> bool | None:
    """Return None where evictions may take much of the time and no evidence shows it; False elsewhere."""
    eviction, prefilling = facts.window.eviction, facts.window.throughput.prefilling
    if eviction.recomputed_ratio is not None or eviction.hit_ratio is None or prefilling is None:
        return False
    # At most all that is computed was here before.
    return None if min(1.0, prefilling) >= facts.thresholds.eviction.time_min_ratio else False


frontend_slow = symptom("frontend_slow")

cpu_pressed = symptom("cpu_pressed", "cpu")

is_shedding_load = symptom("load_shed").known_true()
"""The engine refuses requests, at a limit that it was started with; one that never has is not judged."""
