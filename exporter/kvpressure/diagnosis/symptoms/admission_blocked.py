"""Requests wait that do not fit into the free KV cache: the fit test."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import at_least
from kvpressure.diagnosis.verdict import Evidence

NAME = "admission_blocked"


def judge(inputs: Inputs) -> Evidence:
    """Judge the share of recent polls in which a typical prompt waited and did not fit.

    Where the batch is not held by a fixed cap, a long prompt at the head of the queue counts as the one that waits.
    """
    recent, limits = inputs.recent, inputs.thresholds
    ratio = recent.blocked_ratio
    capped = recent.steadiness is not None and recent.steadiness >= limits.at_cap_min_ratio
    if ratio is not None and recent.blocked_by_long_ratio is not None and not capped:
        ratio = max(ratio, recent.blocked_by_long_ratio)
    text = "polls in which requests waited and a prompt did not fit the free KV cache"
    return at_least(NAME, ratio, limits.admission_blocked_min_ratio, "ratio", text)
