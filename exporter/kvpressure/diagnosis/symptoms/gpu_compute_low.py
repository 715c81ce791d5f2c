"""GPUs idle although there is demand."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import shown
from kvpressure.model.verdict import Evidence

NAME = "gpu_compute_low"


def judge(inputs: Inputs) -> Evidence:
    """True when utilization is low while requests run or wait; without demand it says nothing and is false."""
    limit = inputs.thresholds.gpu_compute_low_max_ratio
    value, busy = inputs.value("engine_gpu_utilization_ratio"), inputs.recent.busy
    if value is None or busy is None:
        return Evidence(NAME, None, f"not known: GPU utilization{estimated_work(inputs)}", None, limit, "ratio")
    text = f"GPU utilization: {shown(value, 'ratio')}" + ("" if busy else ", without demand")
    return Evidence(NAME, busy and value < limit, text, value, limit, "ratio")


def estimated_work(inputs: Inputs) -> str:
    """What the engine says that its GPUs do; what share of their best that is, depends on what they are."""
    flops, memory = inputs.value("estimated_flops_per_second"), inputs.value("estimated_memory_bytes_per_second")
    if flops is None or memory is None:
        return ""
    return f"; by the engine's estimate each computes {flops / 1e12:.3g} TFLOP/s and moves {memory / 1e9:,.0f} GB/s"
