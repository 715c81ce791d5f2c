"""Requests take much longer than they do when this engine is healthy."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import at_least
from kvpressure.model.verdict import Evidence

NAME = "latency_inflated"


def judge(inputs: Inputs) -> Evidence:
    """Judge the larger inflation of end-to-end and inter-token p95; what longer answers explain is none."""
    value, kind = inputs.inflation()
    growth = inputs.recent.answer_growth
    longer = f", allowing for answers {growth:.1f}x as long" if kind == "e2e" and growth > 1.05 else ""
    text = f"{kind.replace('_', '-')} p95 over this engine's healthy one{longer}"
    return at_least(NAME, value, inputs.thresholds.latency_inflated_min_factor, "factor", text)
