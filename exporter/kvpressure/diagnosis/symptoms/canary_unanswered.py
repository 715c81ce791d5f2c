"""The engine was asked for one token and gave none. Judged only where engines are asked."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.features.canary import CANARY_UNANSWERED
from kvpressure.model.verdict import Evidence

NAME = CANARY_UNANSWERED


def judge(inputs: Inputs) -> Evidence:
    """Judge what the newest request of one token came to."""
    told = inputs.external_evidence[NAME]
    return Evidence(NAME, told.state, told.text)
