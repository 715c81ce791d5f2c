"""The engine refuses requests because too many are there. Judged only where it ever has."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.judging import at_least
from kvpressure.model.verdict import Evidence

NAME = "load_shed"


def judge(inputs: Inputs) -> Evidence:
    """Judge the share of requests refused; whoever sent them may have tried again, here or elsewhere."""
    rate = inputs.value("requests_refused_per_second")
    each = "" if rate is None else f" ({rate:.1f} a second)"
    text = f"requests that the engine refused, of those sent{each}"
    return at_least(NAME, inputs.recent.refused_ratio, inputs.thresholds.load_shed_min_ratio, "ratio", text)
