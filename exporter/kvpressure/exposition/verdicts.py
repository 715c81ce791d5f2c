"""A diagnosis as metric families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.model.family import engine_family
from kvpressure.model.values import known
from kvpressure.model.verdict import Cause, Diagnosis
from kvpressure.model.view import EngineView, Unreachable
from kvpressure.signals import Derived, Value

FAMILIES: Final = (
    engine_family(
        "symptom", "1 where the symptom holds, 0 where it does not; absent where it cannot be judged.", "symptom"
    ),
    engine_family("score", "KV cache pressure, 0 to 1."),
    engine_family("bottleneck", "State set: exactly one cause is 1.", "cause"),
    engine_family(
        "bottleneck_info",
        "1 for the cause that holds and which kind of it; the detail is empty where nothing tells.",
        "cause",
        "detail",
    ),
    engine_family("bottleneck_confidence", "Share of the evidence that agrees with the cause."),
    engine_family("engine_up", "1 where the engine answers, 0 where it did and is still to be polled."),
    engine_family("engine_silent_seconds", "Time since the engine last answered; absent while it answers."),
    engine_family(
        "engine_last_bottleneck",
        "1 for the cause that held when the engine last answered; absent while it answers.",
        "cause",
    ),
    engine_family(
        "engine_last_demand_requests",
        "Mean requests running and waiting when the engine last answered; absent while it answers.",
    ),
)


def diagnosis_families(diagnosis: Diagnosis) -> Derived:
    """Return `symptom`, `score`, `bottleneck`, `bottleneck_info` and `bottleneck_confidence` as derived values."""
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


def silence_families(view: EngineView, silence: Unreachable) -> Mapping[str, object]:
    """Return the families of an engine that does not answer: since when, and its last known state."""
    return {
        "engine_silent_seconds": silence.seconds,
        "engine_last_demand_requests": silence.demand_requests,
        "engine_last_bottleneck": None if view.diagnosis is None else {view.diagnosis.cause.value: 1.0},
    }
