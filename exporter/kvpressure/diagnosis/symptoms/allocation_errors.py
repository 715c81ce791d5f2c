"""The engine's log tells of KV cache allocations that failed."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import from_elsewhere
from kvpressure.model.verdict import Evidence

NAME = "allocation_errors"


def judge(inputs: Inputs) -> Evidence:
    """Judge what the engine's log says."""
    return from_elsewhere(NAME, inputs, "failed KV cache allocations in the engine's log", "not known: no log")
