"""The server starts again and again."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import at_least
from kvpressure.model.verdict import Evidence

NAME = "restarting"


def judge(inputs: Inputs) -> Evidence:
    """Judge the server starts seen in ten minutes, or what the pod's state says."""
    limit = inputs.thresholds.restarting_min_count
    if NAME in inputs.external_evidence:
        told = inputs.external_evidence[NAME]
        return Evidence(NAME, told.state, told.text, None, limit, "count")
    starts = None if inputs.starts is None else float(inputs.starts)
    return at_least(NAME, starts, limit, "count", "server starts seen in ten minutes")
