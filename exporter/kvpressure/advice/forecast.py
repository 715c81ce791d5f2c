"""What is tried on the simulated engine for one case, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvpressure.advice.case import Case
from kvpressure.advice.sizing import pool_change
from kvpressure.whatif.calibrate import UnknownError
from kvpressure.whatif.choice import Choice, choose
from kvpressure.whatif.consequences import Model, model_of
from kvpressure.whatif.cures import HALF_AS_MUCH, KEPT_FREE_RATIO, Cure, keep_free, pool, step_tokens

MEMORY: Final = "gpu_memory_utilization"
KV_DTYPE: Final = "kv_cache_dtype"
STEP: Final = "max_num_batched_tokens"
SMALLEST_BATCHED_TOKENS: Final = 1024
"""Below, prefill is cut into so many steps that time to first token suffers more than memory gains."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The engine as it can be simulated and what is worth doing; or, with neither, why nothing can be predicted."""

    model: Model | None = None
    choice: Choice | None = None
    reason: str = ""


def forecast_of(case: Case) -> Forecast:
    """Simulate the engine as it is, and with every change that might help."""
    try:
        model = model_of(case.observed, case.limits)
    except UnknownError as error:
        return Forecast(reason=str(error))
    return Forecast(model, choose(model, tuple(_settings(case)), tuple(_more_memory(case))))


def _settings(case: Case) -> Iterator[Cure]:
    """What one restart changes."""
    raised = memory(case)
    if raised is not None and raised.value > _ratio(case):
        yield raised
    if case.symptom("preempting") is True and "kept_free" in case.own.flags:
        yield keep_free(KEPT_FREE_RATIO)
    limit = case.limits.max_num_batched_tokens
    if limit is not None and limit.value > SMALLEST_BATCHED_TOKENS:
        yield step_tokens(max(SMALLEST_BATCHED_TOKENS, int(limit.value / 2)))


def _more_memory(case: Case) -> Iterator[Cure]:
    """What holds more in the same memory, at a price in accuracy."""
    if KV_DTYPE in case.own.flags:
        yield pool(KV_DTYPE, HALF_AS_MUCH, 8)


def memory(case: Case) -> Cure | None:
    """The pool under the new memory target, at least; None where that stays or the pool is not known."""
    limit, capacity, target = case.limits.gpu_memory_utilization, case.capacity, case.memory_target
    if limit is None or capacity is None or target is None:
        return None
    change = pool_change(capacity, limit.value, target)
    return pool(MEMORY, 1 + (change if target > limit.value else -change) / capacity, target)


def _ratio(case: Case) -> float:
    limit = case.limits.gpu_memory_utilization
    return 1.0 if limit is None else limit.value
