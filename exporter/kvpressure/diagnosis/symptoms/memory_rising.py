"""Device memory grows under traffic: the pool is fixed, so this is activations on their way to a device OOM."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import at_least
from kvpressure.model.verdict import Evidence

NAME = "memory_rising"


def judge(inputs: Inputs) -> Evidence:
    """Judge the share of a device's memory gained over the window."""
    limit = inputs.thresholds.memory_rising_min_ratio
    return at_least(NAME, inputs.memory_rise_ratio, limit, "ratio", "GPU memory gained over the window")
