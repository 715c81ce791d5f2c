"""The KV cache is nearly full while requests wait."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import shown
from kvpressure.model.verdict import Evidence

NAME = "kv_saturated"


def judge(inputs: Inputs) -> Evidence:
    """Judge mean use with requests waiting in most polls; a full cache that nobody waits for is well used."""
    limit = inputs.thresholds.kv_saturated_min_ratio
    usage, waiting = inputs.recent.usage, inputs.recent.waiting_ratio
    if usage is None or waiting is None:
        return Evidence(NAME, None, "not known: KV cache use", None, limit, "ratio")
    queued = waiting >= inputs.thresholds.waiting_min_ratio
    text = f"KV cache used: {shown(usage, 'ratio')}" + ("" if queued else ", nobody waits")
    return Evidence(NAME, queued and usage >= limit, text, usage, limit, "ratio")
