"""Symptoms of the GPUs that serve an engine: their memory, and how busy they are."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.evidence import at_least, shown
from kvpressure.model.verdict import Evidence


def gpu_memory_high(inputs: Inputs) -> Evidence:
    """Judge the highest share of device memory used over the engine's GPUs.

    Nearly full is normal for a preallocated pool; what is left is the room that a device OOM comes from.
    """
    threshold = inputs.thresholds.gpu_memory_high_warn_ratio
    used = inputs.value("engine_gpu_memory_used_ratio")
    return at_least("gpu_memory_high", used, threshold, "ratio", "GPU memory used")


def gpu_compute_low(inputs: Inputs) -> Evidence:
    """Judge whether GPUs idle although there is demand; without demand it says nothing and is false."""
    threshold = inputs.thresholds.gpu_compute_low_max_ratio
    value, busy = inputs.value("engine_gpu_utilization_ratio"), inputs.window.busy
    if value is None or busy is None:
        text = f"not known: GPU utilization{estimated_work(inputs)}"
        return Evidence("gpu_compute_low", None, text, None, threshold, "ratio")
    text = f"GPU utilization: {shown(value, 'ratio')}" + ("" if busy else ", without demand")
    return Evidence("gpu_compute_low", busy and value < threshold, text, value, threshold, "ratio")


def estimated_work(inputs: Inputs) -> str:
    """Return the engine's own estimate of its GPUs' work; what share of their best that is, depends on the GPUs."""
    flops, memory = inputs.value("estimated_flops_per_second"), inputs.value("estimated_memory_bytes_per_second")
    if flops is None or memory is None:
        return ""
    return f"; by the engine's estimate each computes {flops / 1e12:.3g} TFLOP/s and moves {memory / 1e9:,.0f} GB/s"


def memory_rising(inputs: Inputs) -> Evidence:
    """Judge the share of a device's memory gained over the window.

    The pool is fixed, so what grows under traffic is activations on their way to a device OOM.
    """
    threshold = inputs.thresholds.memory_rising_min_ratio
    return at_least("memory_rising", inputs.memory_rise_ratio, threshold, "ratio", "GPU memory gained over the window")
