"""Hand-made diagnoses and derived values, for tests of what follows from them."""

from dataclasses import replace
from typing import Any

from kvpressure.advice.advise import Action, Case, Limit, Limits, Place, advise, advise_on
from kvpressure.config.thresholds import load_thresholds
from kvpressure.diagnosis.symptoms import NAMES
from kvpressure.model.values import Derived
from kvpressure.model.verdict import Cause, Diagnosis, Evidence, Stage
from kvpressure.model.view import EngineView

THRESHOLDS = load_thresholds()
NOW = 1_767_225_600.0

PRODUCTION = Place(namespace="prod", workload="llama", pod="llama-7d9f-x2x4q", container="vllm", model_name="llama-3")
PROCESS = Place(kubernetes=False, unit="vllm.service", model_name="llama-3", target="gpu7:8000", url="http://gpu7:8000")

# 64 requests of 3000 + 1000 tokens at p95 in a pool of 100,000: 25 fit, 40 run, 24 wait.
SHAPE: Derived = {
    "prompt_tokens": {"0.5": 1500.0, "0.95": 3000.0},
    "output_tokens": {"0.5": 400.0, "0.95": 1000.0},
    "requests_running": 40.0,
    "requests_running_max": 44.0,
    "requests_waiting": 24.0,
    "kv_cache_usage_ratio": 0.97,
    "kv_tokens_per_request": 2425.0,
    "admission_blocked_ratio": 0.85,
    "preempted_request_ratio": 0.2,
    "kv_capacity_tokens": 100_000.0,
    "effective_batch_size_quantile": {"0.5": 36.0, "0.95": 41.0, "0.99": 43.0},
    "tokens_per_second": {"prompt": 5000.0, "generation": 1200.0},
    "arrival_burstiness_ratio": 1.4,
}

LIMITS = Limits(
    max_num_seqs=Limit(48),
    max_num_batched_tokens=Limit(8192),
    max_model_len=Limit(16_384, "page"),
    gpu_memory_utilization=Limit(0.9, "page"),
    kv_capacity_tokens=Limit(100_000, "page"),
)


def diagnosis(
    cause: Cause, stage: Stage = Stage.NONE, detail: str | None = None, grounds: str = "", **states: bool | None
) -> Diagnosis:
    """A verdict with the given symptoms; the others are not known. A batch at its cap unless the detail says else."""
    if detail is None:
        detail = "max_num_seqs" if cause is Cause.CONCURRENCY_BOUND else ""
    symptoms = {
        name: Evidence(name, states.get(name), "seen" if name in states else "not known: nothing told")
        for name in NAMES
    }
    return Diagnosis(NOW, NOW - 75.0, cause, 0.8, 0.7, stage, symptoms, detail, grounds)


def advice(cause: Cause, stage: Stage = Stage.NONE, **given: Any) -> tuple[Action, ...]:
    """Advice for a case: `derived` is laid over `SHAPE`, `limits`, `place` and `thresholds` replace those above."""
    derived = {**SHAPE, **given.pop("derived", {})}
    derived = {name: value for name, value in derived.items() if value is not None}
    limits, place = given.pop("limits", LIMITS), given.pop("place", PRODUCTION)
    thresholds, peers = given.pop("thresholds", THRESHOLDS), given.pop("peers", ())
    return advise(diagnosis(cause, stage, **given), derived, limits, place, thresholds, peers=peers)


def kv(stage: Stage = Stage.COLLAPSED, **given: Any) -> dict[str, Action]:
    """Advice against KV pressure, by key."""
    return {action.key: action for action in advice(Cause.KV_CACHE_PRESSURE, stage, **given)}


def case_of(view: EngineView, **given: Any) -> Case:
    """The case of an engine that runs vLLM somewhere; `given` replaces parts of it."""
    about: dict[str, Any] = {"diagnosis": view.diagnosis, "derived": view.derived, "limits": view.limits}
    return Case(**about | {"thresholds": THRESHOLDS, "place": Place(runtime="vllm"), "observed": view.observed} | given)


def advised(view: EngineView, **given: Any) -> dict[str, Action]:
    """Advice on it, by key, in its order."""
    return {action.key: action for action in advise_on(case_of(view, **given))}


def limits(**changes: Limit | None) -> Limits:
    """`LIMITS` with some replaced."""
    return replace(LIMITS, **changes)
