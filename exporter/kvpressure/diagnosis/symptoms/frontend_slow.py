"""Requests spend their time before or after the engine: tokenizer, API process, network."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.model.verdict import Evidence

NAME = "frontend_slow"


def judge(inputs: Inputs) -> Evidence:
    """Judge the mean time outside the engine, a good part of requests or most of the time to first token."""
    limits, recent, outside = inputs.thresholds, inputs.recent, inputs.recent.outside
    limit = limits.frontend_slow_min_seconds
    if outside is None:
        return Evidence(NAME, None, "not known: no request ended, or its time is not counted", None, limit, "seconds")
    if not outside.whole and (recent.waiting_ratio is None or recent.waiting_ratio >= limits.waiting_min_ratio):
        # Queue time is reported when requests end: while a queue grows or drains, the difference is of other requests.
        return Evidence(NAME, None, "not known while requests wait in the engine", outside.seconds, limit, "seconds")
    what = "requests" if outside.whole else "time to first token"
    least = limits.frontend_slow_min_ratio if outside.whole else limits.frontend_slow_first_token_min_ratio
    text = f"time of {what} spent outside the engine: {outside.seconds:.2f} s, {outside.ratio:.0%} of it"
    slow = outside.seconds >= limit and outside.ratio >= least
    return Evidence(NAME, slow, text, outside.seconds, limit, "seconds")
