"""What is tried on the simulated engine for one case, and what came of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kvpressure.advice.case import Case
from kvpressure.advice.limits import SEQUENCE_CAPS
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.simulation.calibrate import growing_share, held_at
from kvpressure.simulation.config_changes import (
    KV_DTYPE,
    OFFLOAD,
    PREFIX_CACHING,
    SHORT_FIRST,
    WATERMARK_RATIO,
    ConfigChange,
    keep_free,
    kv_in_8_bits,
    length_bounds,
    memory_share,
    offload,
    prefix_caching,
    sequences,
    short_first,
    step_tokens,
)
from kvpressure.simulation.consequences import Model, model_of
from kvpressure.simulation.greedy_search import (
    Choice,
    choose,
    larger_steps,
    more_sequences,
    more_servers,
    without_hold,
)
from kvpressure.simulation.steps import UnknownError

MAX_BOUNDS: Final = 3
"""Of prompt lengths, tried as what is long."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The engine as it can be simulated and what is worth doing; or, with neither, why nothing can be predicted."""

    model: Model | None = None
    choice: Choice | None = None
    reason: str = ""


def forecast_of(case: Case) -> Forecast:
    """Simulate the engine as it is, and with every change that might help."""
    try:
        model = model_of(case.observed, case.limits, case.thresholds)
    except UnknownError as error:
        return Forecast(reason=str(error))
    settings = (*_settings(case), *_order(case, model))
    return Forecast(model, choose(model, settings, tuple(_more_memory(case, model))))


def forecast(case: Case) -> Forecast:
    """Return the forecast for the case, whatever its cause is."""
    row, detail = CATALOGUE[case.diagnosis.cause], case.diagnosis.detail
    if row.predictable and not row.losing:
        return more_gpus(case)
    if detail in (*SEQUENCE_CAPS, "prefill_budget"):
        return more_batch(case)
    return without_limit(case) if row.predictable and not row.of_cache else forecast_of(case)


def more_batch(case: Case) -> Forecast:
    """Return the forecast with more sequences, or more tokens of a step, where their cap defers requests."""
    limit, step = case.limits.max_num_seqs, case.limits.max_num_batched_tokens
    if case.diagnosis.detail == "prefill_budget" and step is not None:
        return _relieved(case, math.inf, lambda model: larger_steps(model, step.value))
    if limit is None:
        return Forecast(reason="how many sequences may run is not known")
    most = case.thresholds.advice_raise_max_factor
    return _relieved(case, limit.value, lambda model: more_sequences(model, limit.value, most))


def more_gpus(case: Case) -> Forecast:
    """Return the forecast with more servers, where the GPU is saturated, and that more sequences would not help."""
    limit = case.limits.max_num_seqs
    rejected = () if limit is None else (sequences(int(2 * limit.value)),)
    growing = None if case.diagnosis.detail == "prefill" else growing_share(case.observed)
    return _relieved(case, math.inf, lambda model: more_servers(model, rejected), growing)


def without_limit(case: Case) -> Forecast:
    """Return the forecast without a cap that is not simulated and holds the batch at what runs now."""
    limit = case.limits.max_num_seqs
    return _relieved(
        case, held_at(case.observed), lambda model: without_hold(model, math.inf if limit is None else limit.value)
    )


def _relieved(
    case: Case, held: float | None, choose: Callable[[Model], Choice], growing: float | None = None
) -> Forecast:
    try:
        model = model_of(case.observed, case.limits, case.thresholds, held=held, growing=growing)
    except UnknownError as error:
        return Forecast(reason=str(error))
    return Forecast(model, choose(model))


def _settings(case: Case) -> Iterator[ConfigChange]:
    """Yield the changes that one restart makes."""
    raised = memory(case)
    if raised is not None and raised.value > _ratio(case):
        yield raised
    if case.symptom("preempting") is True and "kept_free" in case.own.flags:
        yield keep_free(WATERMARK_RATIO)
    if PREFIX_CACHING in case.own.flags and case.observed and case.observed.cache.prefix_caching is False:
        yield prefix_caching()
    limit, least = case.limits.max_num_batched_tokens, case.thresholds.advice_step_tokens_min_tokens
    if limit is not None and limit.value > least:
        yield step_tokens(int(max(least, limit.value / 2)))


def _order(case: Case, model: Model) -> Iterator[ConfigChange]:
    """Yield changes to priority scheduling, short requests first: a restart, and clients that set the priority."""
    if SHORT_FIRST in case.own.flags:
        bounds = length_bounds(model.known, case.thresholds.advice_long_requests_max_ratio)
        yield from map(short_first, itertools.islice(bounds, MAX_BOUNDS))


def _more_memory(case: Case, model: Model) -> Iterator[ConfigChange]:
    """Yield host memory for preempted requests, and 8-bit KV, which needs less memory at a price in accuracy."""
    size = _tier_gib(case, model)
    if OFFLOAD in case.own.flags and case.symptom("preempting") is True and size is not None:
        yield offload(size)
    if KV_DTYPE in case.own.flags:
        yield kv_in_8_bits()


def _tier_gib(case: Case, model: Model) -> int | None:
    """Return the GiB of one GPU that all requests hold at their end; None where the bytes of a token are not known."""
    each = case.observed.cache.bytes_per_token if case.observed else None
    if each is None:
        return None
    known = model.known
    requests = known.measured.running + known.measured.waiting
    return math.ceil(requests * (known.prompts.mean + known.outputs.mean) * each / 2**30)


def memory(case: Case) -> ConfigChange | None:
    """Return the change to the memory target; None where there is none or the pool is not known."""
    limit, target = case.limits.gpu_memory_utilization, case.memory_target
    if limit is None or case.capacity is None or target is None:
        return None
    return memory_share(limit.value, target)


def _ratio(case: Case) -> float:
    limit = case.limits.gpu_memory_utilization
    return 1.0 if limit is None else limit.value
