"""Which cause the evidence of one moment speaks for: the candidate, before hysteresis."""

from __future__ import annotations

from collections.abc import Mapping

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.verdict import Cause, Evidence

MIN_POLLS = 4

Symptoms = Mapping[str, Evidence]


def candidate(inputs: Inputs, symptoms: Symptoms) -> Cause:
    """The first cause, in this order, that the evidence supports."""
    recent = inputs.recent
    if not _enough(inputs) or recent.busy is None or not recent.awake:
        return Cause.UNKNOWN
    if recent.still_seconds >= inputs.thresholds.stuck_min_seconds:
        return Cause.STUCK
    if not recent.busy:
        return Cause.IDLE
    if recent.demand is None:
        return Cause.UNKNOWN
    if kv_limits(inputs, symptoms):
        return Cause.KV_CACHE_PRESSURE
    return _without_kv(inputs, symptoms)


def kv_limits(inputs: Inputs, symptoms: Symptoms) -> bool:
    """KV is what stops demand from running: admission is blocked, requests are preempted, or the cache is full.

    A full cache counts only where the fit test cannot speak, or the batch breathes with the pool: at a fixed cap,
    with room for the next prompt, it is the cap that makes requests wait.
    """
    if symptoms["admission_blocked"].state or symptoms["preempting"].state:
        return True
    return bool(symptoms["kv_saturated"].state) and (inputs.recent.blocked_ratio is None or not at_cap(inputs))


def queued(inputs: Inputs) -> bool:
    """Requests wait in most of the recent polls."""
    ratio = inputs.recent.waiting_ratio
    return ratio is not None and ratio >= inputs.thresholds.waiting_min_ratio


def at_cap(inputs: Inputs) -> bool:
    """The batch stays at its highest value."""
    steadiness = inputs.recent.steadiness
    return steadiness is not None and steadiness >= inputs.thresholds.at_cap_min_ratio


def _without_kv(inputs: Inputs, symptoms: Symptoms) -> Cause:
    if queued(inputs) and at_cap(inputs):
        return Cause.CONCURRENCY_BOUND
    if _compute_limits(inputs, symptoms):
        return Cause.COMPUTE_BOUND
    pressed = symptoms["cpu_pressed"].state or symptoms["frontend_slow"].state
    if pressed and not _gpu_busy(inputs):
        return Cause.HOST_BOUND
    return Cause.HEALTHY


def _compute_limits(inputs: Inputs, symptoms: Symptoms) -> bool:
    """A busy GPU that costs something: steps much slower than when healthy, or a queue that no cap explains.

    Utilization alone says only that some kernel runs; one request can show 100 %.
    """
    if not _gpu_busy(inputs) or symptoms["batch_collapse"].state:
        return False
    slow = inputs.value("latency_inflation_ratio", "inter_token")
    slower = slow is not None and slow >= inputs.thresholds.latency_inflated_min_factor
    return slower or queued(inputs)


def _gpu_busy(inputs: Inputs) -> bool:
    value = inputs.value("engine_gpu_utilization_ratio")
    return value is not None and value >= inputs.thresholds.gpu_compute_high_min_ratio


def _enough(inputs: Inputs) -> bool:
    """Enough polls for a verdict: the least number, or, where polls are rare, a whole verdict window of a few."""
    recent, limits = inputs.recent, inputs.thresholds
    if recent.polls >= limits.verdict_min_polls:
        return True
    return recent.polls >= MIN_POLLS and recent.seconds >= limits.verdict_window_seconds
