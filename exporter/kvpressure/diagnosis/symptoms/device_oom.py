"""The GPU ran out of memory (CUDA or HIP out of memory in the log)."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import from_elsewhere
from kvpressure.model.verdict import Evidence

NAME = "device_oom"


def judge(inputs: Inputs) -> Evidence:
    """Judge what the engine's log says."""
    return from_elsewhere(NAME, inputs, "GPU out of memory in the engine's log", "not known: no log")
