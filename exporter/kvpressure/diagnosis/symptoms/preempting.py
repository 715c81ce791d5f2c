"""Running requests are thrown out to make room and computed again."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import shown
from kvpressure.model.values import number
from kvpressure.model.verdict import Evidence

NAME = "preempting"


def judge(inputs: Inputs) -> Evidence:
    """Judge preemptions per request served, when they happen again and again."""
    limits, recent = inputs.thresholds, inputs.recent
    limit, ratio = limits.preempting_min_ratio, recent.preempted_ratio
    if ratio is None or recent.preemption_bursts is None:
        return Evidence(NAME, None, "not known: preemptions", None, limit, "ratio")
    sustained = recent.preemption_bursts >= limits.preempting_min_burst_count
    text = f"preemptions per request served: {shown(ratio, 'ratio')}{_thrown_out(inputs)}"
    return Evidence(NAME, sustained and ratio >= limit, text, ratio, limit, "ratio")


def _thrown_out(inputs: Inputs) -> str:
    tokens = inputs.value("kv_preempted_tokens_per_second")
    return f"; about {number(round(tokens))} tokens of KV cache lost to it per second" if tokens else ""
