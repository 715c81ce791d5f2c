"""The container was killed for host memory (OOMKilled, exit code 137)."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import from_elsewhere
from kvpressure.model.verdict import Evidence

NAME = "host_oom"


def judge(inputs: Inputs) -> Evidence:
    """Judge what the pod's state says."""
    return from_elsewhere(NAME, inputs, "container killed for host memory (OOMKilled, 137)", "not known: no pod state")
