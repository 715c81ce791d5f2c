"""Requests take much longer than they do when this engine is healthy."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import at_least
from kvpressure.diagnosis.verdict import Evidence

NAME = "latency_inflated"


def judge(inputs: Inputs) -> Evidence:
    """Judge the larger inflation of end-to-end and inter-token p95."""
    found = [(v, kind) for kind in ("e2e", "inter_token") if (v := inputs.value("latency_inflation_ratio", kind))]
    value, kind = max(found, default=(None, "e2e"))
    text = f"{kind.replace('_', '-')} p95 over this engine's healthy one"
    return at_least(NAME, value, inputs.thresholds.latency_inflated_min_factor, "factor", text)
