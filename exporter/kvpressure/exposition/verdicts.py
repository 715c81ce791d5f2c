"""A diagnosis as metric families."""

from __future__ import annotations

from collections.abc import Mapping

from kvpressure.features import Derived, Value
from kvpressure.model.values import known
from kvpressure.model.verdict import Cause, Diagnosis
from kvpressure.model.view import EngineView, Silence


def diagnosis_families(diagnosis: Diagnosis) -> Derived:
    """`symptom`, `score`, `bottleneck`, `bottleneck_info` and `bottleneck_confidence`, keyed like derived values."""
    symptoms: dict[str, Value] = {
        name: float(evidence.state) for name, evidence in diagnosis.symptoms.items() if evidence.state is not None
    }
    return known(
        {
            "symptom": symptoms or None,
            "score": diagnosis.score,
            "bottleneck": {cause.value: float(cause is diagnosis.cause) for cause in Cause},
            "bottleneck_info": {diagnosis.cause.value: {diagnosis.detail: 1.0}},
            "bottleneck_confidence": diagnosis.confidence,
        }
    )


def silence_families(view: EngineView, silence: Silence) -> Mapping[str, object]:
    """Of an engine that does not answer: since when, and what it was like before; nothing as of now."""
    return {
        "engine_silent_seconds": silence.seconds,
        "engine_last_demand_requests": silence.demand_requests,
        "engine_last_bottleneck": None if view.diagnosis is None else {view.diagnosis.cause.value: 1.0},
    }
