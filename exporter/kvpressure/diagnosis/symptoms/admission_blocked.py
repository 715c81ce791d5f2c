"""Requests wait that do not fit into the free KV cache: the fit test."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import at_least
from kvpressure.model.verdict import Evidence

NAME = "admission_blocked"


def judge(inputs: Inputs) -> Evidence:
    """Judge the share of recent polls in which a typical prompt waited and did not fit.

    Where the batch is not held by a fixed cap, a long prompt at the head of the queue counts as the one that waits; and
    while requests wait all the time, the polls with the largest batch decide.
    And where nothing at all starts although requests wait and the batch has been larger, the head does not fit,
    whatever its length: it may be a preempted request that brings its answer along.
    """
    recent, limits = inputs.recent, inputs.thresholds
    ratio = recent.blocked_ratio
    capped = recent.steadiness is not None and recent.steadiness >= limits.at_cap_min_ratio
    if ratio is not None and recent.blocked_by_long_ratio is not None and not capped:
        ratio = max(ratio, recent.blocked_by_long_ratio)
        if (recent.waiting_ratio or 0.0) >= limits.starved_min_waiting_ratio:
            ratio = max(ratio, recent.blocked_at_peak_ratio or 0.0)
    text = "polls in which requests waited and a prompt did not fit the free KV cache"
    evidence = at_least(NAME, ratio, limits.admission_blocked_min_ratio, "ratio", text)
    if evidence.state or capped or not _starved(inputs):
        return evidence
    seen = f"requests waited for {recent.seconds:.0f} s, none started, and the batch has been larger"
    return Evidence(NAME, True, seen, ratio, limits.admission_blocked_min_ratio, "ratio")


def _starved(inputs: Inputs) -> bool:
    recent, limits = inputs.recent, inputs.thresholds
    if recent.started is None or recent.waiting_ratio is None or recent.usage is None or not recent.tokens:
        return False  # without tokens the engine hangs, which is another matter
    full = recent.usage >= limits.starved_min_usage_ratio
    return full and recent.waiting_ratio >= limits.starved_min_waiting_ratio and recent.started <= 0
