"""Requests spend most of their time to first token before the engine sees them: tokenizer, API process, network."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.model.verdict import Evidence

NAME = "frontend_slow"


def judge(inputs: Inputs) -> Evidence:
    """Judge the mean time outside the engine, when it is most of the time to first token."""
    limits, recent = inputs.thresholds, inputs.recent
    limit, seconds, ratio = limits.frontend_slow_min_seconds, recent.outside_seconds, recent.outside_ratio
    if seconds is None or ratio is None:
        return Evidence(NAME, None, "not known: time to first token, queue or prefill time", None, limit, "seconds")
    if recent.waiting_ratio is None or recent.waiting_ratio >= limits.waiting_min_ratio:
        # Queue time is reported when requests end: while a queue grows or drains, the difference is of other requests.
        return Evidence(NAME, None, "not known while requests wait in the engine", seconds, limit, "seconds")
    text = f"time to first token spent outside the engine: {seconds:.2f} s, {ratio:.0%} of it"
    slow = seconds >= limit and ratio >= limits.frontend_slow_min_ratio
    return Evidence(NAME, slow, text, seconds, limit, "seconds")
