"""Comparisons that most symptoms are made of."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.model.verdict import Evidence


def at_least(symptom: str, value: float | None, threshold: float, unit: str, text: str) -> Evidence:
    """Return whether `value` reaches `threshold`; unknown without a value. `text` names what `value` is."""
    if value is None:
        return Evidence(symptom, None, f"not known: {text}", None, threshold, unit)
    return Evidence(symptom, value >= threshold, f"{text}: {shown(value, unit)}", value, threshold, unit)


def from_elsewhere(symptom: str, inputs: Inputs, text: str, missing: str) -> Evidence:
    """Return what another source says of a symptom, `text` being what it is; `missing` says what would be needed."""
    told = inputs.external_evidence.get(symptom)
    return Evidence(symptom, None, missing) if told is None else Evidence(symptom, told.state, f"{text}: {told.text}")


def shown(value: float, unit: str) -> str:
    """Return a value for people."""
    if unit == "ratio":
        return f"{value:.0%}"
    if unit == "seconds":
        return f"{value:.2f} s"
    return f"{value:.1f}{'x' if unit == 'factor' else ''}"
