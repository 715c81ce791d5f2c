"""What is tried on the simulated engine for one case, and what came of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kvpressure.advice.case import Case
from kvpressure.capacity.cards import table_for
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.action import Expected, Shift
from kvpressure.model.values import Derived, at
from kvpressure.simulation import config_changes, eviction_cures, greedy_search
from kvpressure.simulation.calibrate import Given, Known, growing_share, held_at
from kvpressure.simulation.config_changes import (
    OFFLOAD,
    PREFIX_CACHING,
    SESSIONS,
    SHORT_FIRST,
    STEP,
    ConfigChange,
)
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import Choice, Step
from kvpressure.simulation.hits import has_sessions
from kvpressure.simulation.models import model_of, model_with_sessions
from kvpressure.simulation.scheduler import Simulation
from kvpressure.simulation.step_table import StepTable
from kvpressure.simulation.steps import UnknownError

MAX_BOUNDS: Final = 3
"""Of prompt lengths, tried as what is long."""
ONE_REQUEST: Final = 1.0
"""A queue that is off by no more is the same queue; of seconds and of tokens/s nothing like it is true."""
_OF_PROMPTS: Final = ("prefill", "long_prompt")
"""Details of `compute_bound` in which prompts take the time, so the growth of contexts is not known."""
OTHER_QUEUE: Final = "the simulation does not reproduce how many requests wait now"
_AGAIN: Final[dict[str, Callable[[int], ConfigChange]]] = {
    "cap_prompt": config_changes.cap_prompt,
    "cap_output": config_changes.cap_output,
    "max_num_seqs": config_changes.sequences,
    STEP: config_changes.step_tokens,
    SESSIONS: config_changes.sessions,
}
"""Changes whose value stays what it was when the step was chosen."""
_ADVISED_AS: Final = {SESSIONS: "fewer_sessions"}
"""Keys of actions that are not those of their changes."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The engine as it can be simulated and the changes that help; or, with neither, why nothing can be predicted."""

    model: Model | None = None
    choice: Choice | None = None
    reason: str = ""

    def printed(self, case: Case) -> Choice | None:
        """Return the choice as it is printed: each step by itself, without those that would make it worse."""
        if self.model is None or self.choice is None:
            return None
        return _printed(case, self.model, self.choice)


def forecast_of(case: Case) -> Forecast:
    """Simulate the engine as it is, and with every change that might help."""
    return _relieved(case, None, lambda model: greedy_search.choose(model, *_changes(case, model), case.replicas or 2))


def without_restart(case: Case, model: Model) -> Choice:
    """Return the steps that need no restart, each by itself: caps at the gateway, and replicas."""
    refused = case.thresholds.advice.refused_max_ratio
    choice = _printed(case, model, greedy_search.without_restart(model, refused, case.replicas or 2))
    # Requests under way may be longer than those that ended, by which caps are chosen.
    return replace(choice, steps=tuple(step for step in choice.steps if step.expected.unserved_ratio <= refused))


def without_gpu(case: Case, model: Model) -> Step | None:
    """Return the step that gains most without more GPUs, though it refuses many; None where none is sure to help."""
    settings, more = _changes(case, model)
    best = greedy_search.without_gpu(model, [*settings, *more])
    if best is None or _judged(case, best.expected).worse:
        return None
    drain = model.drain_seconds([best.change])
    return replace(best, expected=replace(as_shown(case.derived, case.thresholds, best.expected), drain_seconds=drain))


def as_shown(derived: Derived, thresholds: Thresholds, expected: Expected) -> Expected:
    """Return what is expected with what is shown now as its "before"; NaN where that is not what was simulated."""
    return replace(
        expected,
        tokens_per_second=_beside(derived, thresholds, expected.tokens_per_second, "tokens_per_second", "generation"),
        latency_p95=_beside(derived, thresholds, expected.latency_p95, "latency_seconds", "e2e", "0.95"),
        waiting=_beside(derived, thresholds, expected.waiting, "requests_waiting", off_by=ONE_REQUEST),
    )


def _beside(derived: Derived, thresholds: Thresholds, shift: Shift, *path: str, off_by: float = 0.0) -> Shift:
    now = at(derived, *path)
    if now is None or not _same(thresholds, shift.before, now, off_by):
        return replace(shift, before=math.nan)
    factor, more = (now / shift.before if shift.before > 0 else 1.0), 0.0
    if min(now, shift.before) < off_by:  # the ratio of two short queues says nothing: move by their difference
        factor, more = 1.0, now - shift.before
    return Shift(now, *(max(0.0, factor * one + more) for one in (shift.after, shift.low, shift.high)))


def _same(thresholds: Thresholds, simulated: float, now: float, off_by: float) -> bool:
    most = thresholds.advice.shown_error_max_ratio
    return abs(simulated - now) <= max(off_by, most * max(simulated, now))


def _printed(case: Case, model: Model, choice: Choice) -> Choice:
    steps, worse = list[Step](), list[Step]()
    for change in _with_standing(case, [step.change for step in choice.steps]):
        expected = model.expected([], [change])
        if expected is not None:
            (worse if _judged(case, expected).worse else steps).append(Step(change, expected))
    declined = list(choice.declined)
    if worse:  # what gains nothing beside these may help without them
        steps += [step for step in declined if _helps_alone(case, model, step)]
        declined = [step for step in declined if step not in steps] + worse
    printed = [
        replace(
            step,
            expected=replace(
                as_shown(case.derived, case.thresholds, step.expected),
                drain_seconds=model.drain_seconds([step.change]),
            ),
        )
        for step in steps
    ]
    return Choice(tuple(printed), tuple(_as_declined(case, model, step) for step in declined))


def _helps_alone(case: Case, model: Model, step: Step) -> bool:
    gain = model.gain([], step.change)
    return not step.against and gain is not None and gain.helps and not _judged(case, step.expected).worse


def _judged(case: Case, simulated: Expected) -> Expected:
    """Return what is shown, and what was simulated where the figure of now is not: NaN is neither better nor worse."""
    shown = as_shown(case.derived, case.thresholds, simulated)
    pairs = (
        (shown.tokens_per_second, simulated.tokens_per_second),
        (shown.latency_p95, simulated.latency_p95),
        (shown.waiting, simulated.waiting),
    )
    tokens, latency, waiting = (other if math.isnan(shift.before) else shift for shift, other in pairs)
    return replace(shown, tokens_per_second=tokens, latency_p95=latency, waiting=waiting)


def _as_declined(case: Case, model: Model, step: Step) -> Step:
    """Return the step as it is printed, with what speaks against it."""
    judged, helps = replace(step, expected=_judged(case, step.expected)), _helps_alone(case, model, step)
    against = step.against or _why_not(judged, case.thresholds.advice.gain_min_ratio, helps=helps)
    return replace(step, expected=as_shown(case.derived, case.thresholds, step.expected), against=against)


def _why_not(step: Step, least: float, *, helps: bool) -> str:
    """Return what speaks against a step, in words; `helps` says whether it would help by itself."""
    shift = step.expected.tokens_per_second
    if step.expected.worse and shift.after >= shift.before:
        return "answers come later, and as many wait"
    if step.change.at_best:
        return "gains too little even at best"
    if step.expected.shortened_ratio > 0:
        return "answers that are cut short do not count as served"
    gain = shift.after / shift.before - 1 if shift.before else 0.0
    if gain < -least:
        return f"{-gain:.0%} fewer tokens"
    if gain > least:
        return "gains nothing beside the steps that are advised" if helps else "may gain nothing, by what is not known"
    surely = "" if shift.low == shift.high else " in the worst case"
    return f"gains less than {least:.0%}{surely}"


def _with_standing(case: Case, changes: Iterable[ConfigChange]) -> Iterator[ConfigChange]:
    """Yield the changes, the one that stands as the first step with the value that it has."""
    key, value = case.standing
    for change in changes:
        again = None if _ADVISED_AS.get(change.key, change.key) != key or value is None else _AGAIN.get(change.key)
        yield change if again is None or value is None else again(int(value))


def of_eviction(case: Case, check: Callable[[Known], None] | None = None) -> Forecast:
    """Simulate the engine with its sessions, and each change by itself that might keep more of their contexts.

    `check` raises UnknownError where the simulated engine is not this one.
    """
    try:
        model = model_with_sessions(case.observed, case.limits, case.thresholds, check=check)
    except UnknownError as error:
        return Forecast(reason=str(error))
    raised, limit = memory(case), case.limits.gpu_memory_utilization
    each = case.observed.cache.bytes_per_token if case.observed else None
    tried = [
        eviction_cures.fewer_sessions(model),
        config_changes.kv_in_8_bits() if case.small_kv_helps else None,
        raised if raised is not None and limit is not None and raised.value > limit.value else None,
        eviction_cures.tier(model, each) if OFFLOAD in case.own.flags.limits and each else None,
        eviction_cures.replicas(model),
    ]
    return Forecast(model, eviction_cures.choose(model, [change for change in tried if change is not None]))


def with_sessions(case: Case) -> Forecast | None:
    """Return the forecast with sessions of an engine whose requests wait for the pool, where contexts are evicted.

    None where these are no matter. Hits of other pools say that the cures of evictions help both; without them the page
    has to, and then the simulation has to wait for the pool as the engine does.
    """
    measured = case.observed is not None and bool(case.observed.hits_by_pool)
    evicting = measured or case.symptom("evicting") is True
    if not evicting or not has_sessions(case.observed, case.thresholds):
        return None
    return of_eviction(case, None if measured else partial(_check_queue, case))


def _check_queue(case: Case, known: Known) -> None:
    """Check that as many wait in the simulation as do; at a rate, how many is chance unless the queue grows.

    A queue that grows is compared by what is answered beside what comes, which makes it grow. Raises UnknownError.
    """
    run = known.simulation or Simulation(known.server, known.demand)
    simulated, measured, alike = run.outcome(), known.measured, False
    if simulated is not None and known.demand.rate:
        most = case.thresholds.advice.simulated_error_max_ratio
        alike = abs(simulated.tokens_per_second / measured.tokens_per_second - 1) <= most
    elif simulated is not None:
        alike = _same(case.thresholds, simulated.waiting, measured.waiting, ONE_REQUEST)
    if not alike:
        raise UnknownError(OTHER_QUEUE)


def more_batch(case: Case) -> Forecast:
    """Return the forecast with more sequences, or more tokens of a step, where their cap defers requests."""
    limit, step = case.limits.max_num_seqs, case.limits.max_num_batched_tokens
    if case.diagnosis.detail == "prefill_budget" and step is not None:
        return _relieved(
            case, math.inf, lambda model: greedy_search.larger_steps(model, step.value, case.replicas or 2)
        )
    if limit is None:
        return Forecast(reason="how many sequences may run is not known")
    most = case.thresholds.advice.raise_max_factor
    return _relieved(
        case, limit.value, lambda model: greedy_search.more_sequences(model, limit.value, most, case.replicas or 2)
    )


def more_gpus(case: Case) -> Forecast:
    """Return the forecast with more servers, where the GPU is saturated, and that more sequences would not help."""
    limit = case.limits.max_num_seqs
    rejected = () if limit is None else (config_changes.sequences(int(2 * limit.value)),)
    growing = None if case.diagnosis.detail in _OF_PROMPTS else growing_share(case.observed)
    return _relieved(
        case, math.inf, lambda model: greedy_search.more_servers(model, case.replicas or 2, rejected), growing
    )


def without_limit(case: Case) -> Forecast:
    """Return the forecast without a cap that is not simulated and holds the batch at what runs now."""
    limit = case.limits.max_num_seqs
    return _relieved(
        case,
        held_at(case.observed),
        lambda model: greedy_search.without_hold(model, math.inf if limit is None else limit.value),
    )


def card_of(case: Case) -> StepTable | None:
    """Return the table of step times of its GPUs and its model; None where they are not known, or there is none.

    Of a KV cache in 8 bits where the engine reports that, or no other is shipped.
    """
    if case.observed is None or len(set(case.observed.gpus)) != 1:
        return None
    gpus, bits = case.observed.gpus, (8, 16) if case.observed.cache.kv_bits == 8 else (16, 8)
    tables = (table_for(gpus[0], case.place.model_name, len(gpus), each) for each in bits)
    return next((table for table in tables if table is not None), None)


def _relieved(
    case: Case, most_running: float | None, choose: Callable[[Model], Choice], growing: float | None = None
) -> Forecast:
    try:
        model = model_of(Given(case.observed, case.limits, case.thresholds, growing, most_running, card_of(case)))
        _check_queue(case, model.known)
    except UnknownError as error:
        return Forecast(reason=str(error))
    return Forecast(model, choose(model))


def _changes(case: Case, model: Model) -> tuple[list[ConfigChange], list[ConfigChange]]:
    """Return the changes that one restart makes; and those to more memory, which cost that or accuracy."""
    flags, preempting = case.own.flags.limits, case.symptom("preempting") is True
    settings, more = list[ConfigChange](), list[ConfigChange]()
    limit, raised = case.limits.gpu_memory_utilization, memory(case)
    if raised is not None and raised.value > (1.0 if limit is None else limit.value):
        settings.append(raised)
    if preempting and "watermark" in flags:
        settings.append(config_changes.watermark(config_changes.WATERMARK_RATIO))
    if PREFIX_CACHING in flags and case.observed and case.observed.cache.prefix_caching is False:
        settings.append(config_changes.prefix_caching())
    step, least = case.limits.max_num_batched_tokens, case.thresholds.advice.step_tokens_min_tokens
    if step is not None and step.value > least:
        settings.append(config_changes.step_tokens(int(max(least, step.value / 2))))
    if SHORT_FIRST in flags:  # clients have to set the priority too
        bounds = config_changes.length_bounds(model.known, case.thresholds.advice.long_requests_max_ratio)
        settings += map(config_changes.short_first, itertools.islice(bounds, MAX_BOUNDS))
    size = _tier_gib(case, model)
    if OFFLOAD in flags and preempting and size is not None:
        more.append(config_changes.offload(size))
    if case.small_kv_helps:
        more.append(config_changes.kv_in_8_bits())
    return settings, more


def _tier_gib(case: Case, model: Model) -> int | None:
    """Return the GiB of one GPU that all requests hold at their end; None where the bytes of a token are not known."""
    each, known = case.observed.cache.bytes_per_token if case.observed else None, model.known
    requests = known.measured.running + known.measured.waiting
    return None if each is None else math.ceil(requests * (known.prompts.mean + known.outputs.mean) * each / 2**30)


def memory(case: Case) -> ConfigChange | None:
    """Return the change to the memory target; None where there is none or the pool is not known."""
    limit, target = case.limits.gpu_memory_utilization, case.memory_target
    if limit is None or case.capacity is None or target is None:
        return None
    return config_changes.memory_share(limit.value, target)
