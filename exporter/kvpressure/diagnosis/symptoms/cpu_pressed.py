"""The host's CPUs, or the container's share of them, hold the engine up."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import from_elsewhere
from kvpressure.model.verdict import Evidence

NAME = "cpu_pressed"


def judge(inputs: Inputs) -> Evidence:
    """Judge what the host says."""
    return from_elsewhere(NAME, inputs, "CPU pressure or throttling", "not known: no CPU pressure of the host")
