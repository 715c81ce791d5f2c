"""A diagnosis as metric families and as JSON."""

from __future__ import annotations

from kvpressure.derive import Derived, Value
from kvpressure.derive.values import known
from kvpressure.diagnosis.verdict import Cause, Diagnosis


def diagnosis_families(diagnosis: Diagnosis) -> Derived:
    """`symptom`, `score`, `bottleneck` and `bottleneck_confidence`, keyed like derived values."""
    symptoms: dict[str, Value] = {
        name: float(evidence.state) for name, evidence in diagnosis.symptoms.items() if evidence.state is not None
    }
    return known(
        {
            "symptom": symptoms or None,
            "score": diagnosis.score,
            "bottleneck": {cause.value: float(cause is diagnosis.cause) for cause in Cause},
            "bottleneck_confidence": diagnosis.confidence,
        }
    )


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, object]:
    """What `replay --json` adds to a line: names to values, a symptom that cannot be judged is null."""
    return {
        "cause": diagnosis.cause.value,
        "confidence": diagnosis.confidence,
        "score": diagnosis.score,
        "stage": diagnosis.stage.value,
        "symptoms": {name: evidence.state for name, evidence in diagnosis.symptoms.items()},
    }
