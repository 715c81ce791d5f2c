"""Requests wait that do not fit into the free KV cache: the fit test."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import at_least
from kvpressure.model.verdict import Evidence

NAME = "admission_blocked"


def judge(inputs: Inputs) -> Evidence:
    """Judge the share of recent polls in which requests waited and did not fit (`features.fit`)."""
    recent, limit = inputs.recent, inputs.thresholds.admission_blocked_min_ratio
    if recent.starved:
        seen = f"requests waited for {recent.seconds:.0f} s, none started, and a long one would not fit with its answer"
        return Evidence(NAME, True, seen, recent.blocked_ratio, limit, "ratio")
    text = "polls in which requests waited and a prompt did not fit the free KV cache"
    return at_least(NAME, recent.blocked_ratio, limit, "ratio", text)
