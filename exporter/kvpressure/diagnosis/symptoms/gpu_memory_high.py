"""Device memory nearly full: normal for a preallocated pool, and the room that a device OOM comes from."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import at_least
from kvpressure.model.verdict import Evidence

NAME = "gpu_memory_high"


def judge(inputs: Inputs) -> Evidence:
    """Judge the highest share of device memory used over the engine's GPUs."""
    limit = inputs.thresholds.gpu_memory_high_warn_ratio
    return at_least(NAME, inputs.value("engine_gpu_memory_used_ratio"), limit, "ratio", "GPU memory used")
