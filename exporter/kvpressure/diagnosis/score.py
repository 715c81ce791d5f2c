"""KV pressure as one number, how sure a cause is, and how far KV pressure has gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvpressure.config.thresholds import Thresholds
from kvpressure.diagnosis.canary import unanswered
from kvpressure.diagnosis.inputs import Inputs
from kvpressure.model.values import ramp
from kvpressure.model.verdict import Cause, Evidence, Stage

Symptoms = Mapping[str, Evidence]

_EXPECTED: dict[Cause, dict[str, bool]] = {
    Cause.KV_CACHE_PRESSURE: {
        "batch_collapse": True,
        "latency_inflated": True,
        "throughput_plateau": True,
        "gpu_compute_low": True,
        "gpu_memory_high": True,
    },
    Cause.CONCURRENCY_BOUND: {
        "admission_blocked": False,
        "kv_saturated": False,
        "preempting": False,
        "throughput_plateau": True,
    },
    Cause.COMPUTE_BOUND: {
        "admission_blocked": False,
        "preempting": False,
        "gpu_compute_low": False,
        "latency_inflated": True,
    },
    Cause.HOST_BOUND: {
        "admission_blocked": False,
        "preempting": False,
        "gpu_compute_low": True,
        "frontend_slow": True,
        "cpu_pressed": True,
    },
    Cause.DEFERRED: {"admission_blocked": False, "kv_saturated": False, "preempting": False},
    Cause.PAUSED: {"preempting": False},
    Cause.STUCK: {"throughput_plateau": True, "gpu_compute_low": True, "preempting": False},
    Cause.IDLE: {"admission_blocked": False, "preempting": False, "gpu_compute_low": False},
    Cause.HEALTHY: {
        "admission_blocked": False,
        "kv_saturated": False,
        "preempting": False,
        "batch_collapse": False,
        "latency_inflated": False,
        "throughput_plateau": False,
    },
}

_CORE = ("admission_blocked", "preempting", "kv_saturated")


def score(inputs: Inputs) -> float | None:
    """KV pressure, 0..1: what KV itself shows, raised by what it costs. None when the engine tells nothing of it.

    Each of admission blocking, preemption and saturation alone can make it high; batch collapse, inflation and idle
    compute only raise it, for they have other causes too. Monotone in every piece of evidence.
    """
    recent, limits = inputs.recent, inputs.thresholds
    blocked_full = limits.score_blocked_full_factor * limits.admission_blocked_min_ratio
    preempted_full = limits.score_preempted_full_factor * limits.preempting_min_ratio
    preempted = recent.preempted_ratio if recent.preemption_bursts else 0.0
    core = [
        _known(recent.blocked_ratio, 0.0, blocked_full, limits.score_blocked_weight_ratio),
        _known(preempted, 0.0, preempted_full, limits.score_preempted_weight_ratio),
        _saturation(inputs),
    ]
    if all(value is None for value in core):
        return None
    unserved = None if not recent.demand or recent.waiting is None else recent.waiting / recent.demand
    inflation, _ = inputs.inflation()
    weight = limits.score_cost_weight_ratio
    cost = [
        _known(unserved, 0.0, 1.0, weight),
        _known(inflation, 1.0, limits.score_inflation_full_factor * limits.latency_inflated_min_factor, weight),
        _known(inputs.value("memory_high_compute_low_score"), 0.0, 1.0, weight),
    ]
    share = limits.score_cost_share_ratio
    return _either(core) * ((1.0 - share) + share * _either(cost))


def confidence(cause: Cause, symptoms: Symptoms, inputs: Inputs) -> float:
    """Share of the evidence that agrees with the cause; what is not known counts a little against it.

    Fewer polls than make a full verdict lower it, down to `sparse_confidence_min_ratio`.
    """
    if cause is Cause.UNKNOWN:
        return 0.0
    least = inputs.thresholds.sparse_confidence_min_ratio
    return _agreement(cause, symptoms, inputs.thresholds) * (least + (1.0 - least) * inputs.recent.coverage)


def _agreement(cause: Cause, symptoms: Symptoms, limits: Thresholds) -> float:
    expected = _EXPECTED[cause]
    states = [(symptoms[name].state, wanted, 1.0) for name, wanted in expected.items()]
    if cause is Cause.KV_CACHE_PRESSURE:
        # Any one of the three is how KV pressure shows; that the others do not is no evidence against it.
        states.append((any(symptoms[name].state for name in _CORE), True, limits.confidence_core_weight_factor))
    if cause is Cause.STUCK and unanswered(symptoms):
        # Nothing shows more directly that an engine answers nobody.
        states.append((True, True, limits.confidence_core_weight_factor))
    unknown = limits.confidence_unknown_weight_ratio
    agree = sum(weight for state, wanted, weight in states if state is wanted)
    counted = sum(unknown if state is None else weight for state, _, weight in states)
    return agree / counted if counted else 0.0  # nothing is known, and an operator let that count nothing


def stage(inputs: Inputs, cause: Cause, symptoms: Symptoms) -> Stage:
    """How far KV pressure has gone: building while it is only predicted or costs nothing yet."""
    if cause is not Cause.KV_CACHE_PRESSURE:
        usage = inputs.value("kv_cache_usage_ratio")
        grown = usage is not None and usage >= inputs.thresholds.alert_exhaustion_min_usage_ratio
        building = cause is Cause.HEALTHY and grown and inputs.value("kv_exhaustion_seconds") is not None
        return Stage.BUILDING if building else Stage.NONE
    if any(symptoms[name].state for name in ("device_oom", "allocation_errors", "host_oom", "restarting")):
        return Stage.FAILING
    lost = any(
        symptoms[name].state for name in ("batch_collapse", "throughput_plateau", "preempting", "latency_inflated")
    )
    return Stage.COLLAPSED if lost else Stage.BUILDING


def _saturation(inputs: Inputs) -> float | None:
    recent = inputs.recent
    if recent.usage is None or recent.waiting_ratio is None:
        return None
    limit, weight = inputs.thresholds.kv_saturated_min_ratio, inputs.thresholds.score_saturated_weight_ratio
    return weight * ramp(recent.usage, 2 * limit - 1, 1.0) * recent.waiting_ratio


def _known(value: float | None, start: float, end: float, weight: float) -> float | None:
    return None if value is None else weight * ramp(value, start, end)


def _either(values: Iterable[float | None]) -> float:
    """1 - product of (1 - value): each alone counts, together they add up below 1."""
    rest = 1.0
    for value in values:
        rest *= 1.0 - (value or 0.0)
    return 1.0 - rest
