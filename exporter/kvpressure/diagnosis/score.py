"""KV pressure as one number, how far it has gone, and how sure a verdict is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvpressure.diagnosis.facts import Facts, Inputs
from kvpressure.diagnosis.predicates.symptoms import admission_blocked, evicting, kv_saturated, preempting
from kvpressure.diagnosis.rules import Rule
from kvpressure.diagnosis.symptoms import Symptoms
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.values import ramp
from kvpressure.model.verdict import Stage


def score(inputs: Inputs) -> float | None:
    """Return KV pressure, 0..1: what KV itself shows, raised by what it costs; None when none of it is known.

    Each of admission blocking, preemption, eviction and saturation alone can make it high; batch collapse, inflation
    and idle compute only raise it, for they have other causes too. Monotone in every piece of evidence.
    """
    queue = inputs.window.queue
    preemption = inputs.window.preemption
    thresholds = inputs.thresholds
    blocked_full = thresholds.score.blocked_full_factor * thresholds.symptoms.admission_blocked_min_ratio
    preempted_full = thresholds.score.preempted_full_factor * thresholds.symptoms.preempting_min_ratio
    preempted = preemption.request_ratio
    if preempted is not None and not preemption.burst_count:
        preempted = 0.0  # a single preemption is no trouble
    core = [
        _known(inputs.window.fit.blocked_ratio, 0.0, blocked_full, thresholds.score.blocked_weight_ratio),
        _known(preempted, 0.0, preempted_full, thresholds.score.preempted_weight_ratio),
        _known(_evicted(inputs), 0.0, _evicted_full(inputs), thresholds.score.evicted_weight_ratio),
        _saturation(inputs),
    ]
    if all(value is None for value in core):
        return None
    unserved = None if not queue.demand or queue.waiting is None else queue.waiting / queue.demand
    inflation, _ = inputs.inflation()
    weight = thresholds.score.cost_weight_ratio
    cost = [
        _known(unserved, 0.0, 1.0, weight),
        _known(
            inflation,
            1.0,
            thresholds.score.inflation_full_factor * thresholds.symptoms.latency_inflated_min_factor,
            weight,
        ),
        _known(inputs.value("memory_high_compute_low_ratio"), 0.0, 1.0, weight),
    ]
    share = thresholds.score.cost_share_ratio
    return noisy_or(core) * ((1.0 - share) + share * noisy_or(cost))


def stage(inputs: Inputs, rule: Rule, symptoms: Symptoms) -> Stage:
    """Return how far KV pressure has gone: building while it is only predicted, or the pool is full at no cost yet.

    Of eviction it is the time that it takes: answers may be late of it or not, as the load is.
    """
    cause = rule.cause
    if not CATALOGUE[cause].of_cache:
        usage = inputs.value("kv_cache_usage_ratio")
        grown = usage is not None and usage >= inputs.thresholds.alert.exhaustion_min_usage_ratio
        fills = grown and inputs.value("kv_exhaustion_seconds") is not None
        building = CATALOGUE[cause].serves_all and (fills or rule.detail == _FULL)
        return Stage.BUILDING if building else Stage.NONE
    if any(symptoms[name].state for name in ("device_oom", "allocation_errors", "host_oom", "restarting")):
        return Stage.FAILING
    if EVICTION_SHOWS in rule.expects:
        return Stage.COLLAPSED if (_evicted(inputs) or 0.0) >= _evicted_full(inputs) else Stage.BUILDING
    lost = any(
        symptoms[name].state for name in ("batch_collapse", "throughput_plateau", "preempting", "latency_inflated")
    )
    return Stage.COLLAPSED if lost else Stage.BUILDING


def _evicted(inputs: Inputs) -> float | None:
    """Return the share of time that eviction takes, once it lasts; a short one comes from a change of users."""
    eviction, least = inputs.window.eviction, inputs.thresholds.eviction.turnover_min_count
    return eviction.time_ratio if eviction.turnovers >= least else None


def _evicted_full(inputs: Inputs) -> float:
    """Return the share of time from which on eviction counts in full."""
    return inputs.thresholds.score.evicted_full_factor * inputs.thresholds.eviction.time_min_ratio


def _saturation(inputs: Inputs) -> float | None:
    window = inputs.window
    if window.kv_usage_ratio is None or window.queue.waiting_ratio is None:
        return None
    limit, weight = inputs.thresholds.symptoms.kv_saturated_min_ratio, inputs.thresholds.score.saturated_weight_ratio
    return weight * ramp(window.kv_usage_ratio, 2 * limit - 1, 1.0) * window.queue.waiting_ratio


def _known(value: float | None, start: float, end: float, weight: float) -> float | None:
    return None if value is None else weight * ramp(value, start, end)


def noisy_or(values: Iterable[float | None]) -> float:
    """Return 1 - product of (1 - value): each alone counts, together they add up below 1."""
    rest = 1.0
    for value in values:
        rest *= 1.0 - (value or 0.0)
    return 1.0 - rest


KV_SHOWS: Final = "kv_shows"
"""Any one of these is how KV pressure shows; that the others do not is no evidence against it."""

EVICTION_SHOWS: Final = "eviction_shows"
"""Half of what begins a verdict that says so: sessions come back in waves, and its confidence does not."""

_FULL: Final = "full_pool"
"""The detail of a healthy engine whose cache is full."""

NOBODY_SERVED: Final = "nobody_served"
"""No request has begun to be answered or ended for long; rules that expect it are true only then."""

_kv_shows: Final = admission_blocked | preempting | kv_saturated | evicting


def confidence(rule: Rule, facts: Facts) -> float:
    """Return the share of the evidence that agrees with the rule; what is not known counts a little against it.

    Fewer polls than make a full verdict lower it, and a short time, down to `sparse_confidence_min_ratio`.
    """
    least = facts.thresholds.verdict.sparse_confidence_min_ratio
    return _agreement(rule, facts) * (least + (1.0 - least) * facts.window.coverage)


def _agreement(rule: Rule, facts: Facts) -> float:
    unknown = facts.thresholds.confidence.unknown_weight_ratio
    agree = 0.0
    counted = 0.0
    for name, expected in rule.expects.items():
        if name == EVICTION_SHOWS:
            agree += facts.thresholds.confidence.core_weight_factor * _eviction_shows(facts)
            counted += facts.thresholds.confidence.core_weight_factor
            continue
        state, weight = _state_and_weight(name, facts)
        agree += weight if state is expected else 0.0
        counted += unknown * min(weight, 1.0) if state is None else weight
    return agree / counted if counted else 0.0  # nothing is known, and an operator let that count nothing


def _eviction_shows(facts: Facts) -> float:
    """Return how much of half of what begins a verdict of eviction is there, 0..1."""
    eviction, thresholds = facts.window.eviction, facts.thresholds
    return min(
        ramp(eviction.time_ratio or 0.0, 0.0, thresholds.eviction.time_min_ratio / 2),
        ramp(eviction.recomputed_ratio or 0.0, 0.0, thresholds.eviction.recomputed_min_ratio),
    )


def _state_and_weight(name: str, facts: Facts) -> tuple[bool | None, float]:
    """Return whether a symptom is there, and how much that counts."""
    core = facts.thresholds.confidence.core_weight_factor
    if name == KV_SHOWS:
        return _kv_shows.state(facts), core
    if name == NOBODY_SERVED:
        return facts.window.stall.seconds > 0, core
    return facts.symptom(name), 1.0
