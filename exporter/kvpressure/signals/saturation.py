"""How much of each constraint of an engine is in use, and how much would serve all present demand.

There are three: KV cache tokens, places in the batch, and the time that prompts take (prefill). Each is a share of what
the engine has of it, so that replicas can be counted: two engines with a demand of 0.9 each need 1.8 replicas.
"""

from __future__ import annotations

import math
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.family import engine_family
from kvpressure.model.record import record
from kvpressure.model.values import Derived, Value, known
from kvpressure.signals.context import Context
from kvpressure.signals.kv import kept_tokens
from kvpressure.signals.lengths import (
    RECENT_STARTS,
    answer_mean_tokens,
    computed_share,
    placed_share,
    typical_prompt_tokens,
)
from kvpressure.signals.reading import Reading
from kvpressure.signals.verdict_window import VerdictWindow
from kvpressure.signals.waiting import Queue
from kvpressure.signals.windows import EngineWindow

DRAIN_HOLDS: Final = 2
"""Times as long as replicas are kept at least, a queue may take to be served: so long half of the most are kept."""


@record
class _Load:
    """One constraint, as shares of what the engine has: in use now, and needed for all requests; None if not known."""

    used: float | None = None
    demand: float | None = None


@record
class _Most:
    """Bounds on demand: times what an engine has, and the share of the drain time that a request takes."""

    factor: float
    turn: float | None


FAMILIES: Final = (
    engine_family(
        "saturation_ratio",
        "Utilization of the engine's most used resource: the maximum over KV cache tokens, places in the batch (if "
        "the cap is known) and prefill time. Absent if none is known.",
    ),
    engine_family(
        "demand_replicas",
        "Demand of running and waiting requests, in engines like this one: 1.5 requires one and a half engines. "
        "constraint is kv_tokens, sequences or prefill; unknown ones are absent.",
        "constraint",
    ),
)


def derive(reading: Reading) -> Derived:
    """Return `saturation_ratio` and `demand_replicas` by constraint."""
    window = reading.window
    context = reading.context
    newest = reading.newest
    more = _more(window, newest.queue, context.thresholds)
    most = _Most(context.thresholds.scaling.up_max_factor, _turn(window, context.thresholds))
    loads = {
        "kv_tokens": _kv(window, newest, more, most),
        "sequences": _sequences(context, newest.queue, more, most),
        "prefill": _prefill(window, context, newest.queue, more),
    }
    used = [min(1.0, load.used) for load in loads.values() if load.used is not None]
    demand: dict[str, Value] = {name: load.demand for name, load in loads.items() if load.demand is not None}
    return known({"saturation_ratio": max(used, default=None), "demand_replicas": demand or None})


def _more(window: EngineWindow, queue: Queue, thresholds: Thresholds) -> float | None:
    """Return how much more than is served now it takes, as a share, to serve all who come and drain the queue in time.

    What the target leaves free serves the queue: only where that takes longer does it take more. None where no request
    is admitted or it is not known.
    """
    if queue.waiting is not None and queue.waiting <= 0:
        return 0.0
    started, trend = window.points.rate("started"), window.trend("waiting", window.seconds)
    if not started or queue.waiting is None:
        return None
    growth = 0.0 if trend is None else trend.slope
    scaling, more = thresholds.scaling, max(0.0, growth / started)
    drain = queue.waiting / started / (DRAIN_HOLDS * scaling.down_hold_seconds)
    return max(more, scaling.target_ratio * (1.0 + more + drain) - 1.0)


def _turn(window: EngineWindow, thresholds: Thresholds) -> float | None:
    """Return the share of the time to drain the queue in that one request takes, at most 1; None where not known."""
    each = window.per_event("inference_seconds", "ended", least=RECENT_STARTS, seconds=window.seconds)
    return None if each is None else min(1.0, each / thresholds.scaling.down_hold_seconds)


def _with_queue(running: float, waiting: float, more: float | None, most: _Most) -> float:
    """Return what running requests have and waiting ones need: all at once, or less where the queue is long.

    Then it is as much more than all there is as it takes to serve those who come and drain the queue in time; demand
    at most so many times what there is, and beside it no more than what serves the backlog in time, one after another.
    """
    demand = running + waiting if more is None else min(running + waiting, max(running, 1.0) * (1.0 + more))
    return demand if most.turn is None else min(demand, most.factor * max(running, 1.0) + most.turn * waiting)


def _kv(window: EngineWindow, newest: VerdictWindow, more: float | None, most: _Most) -> _Load:
    """Return tokens of the pool: in use, and what running and waiting requests need halfway through their answers.

    A request has its prompt in the pool when it is admitted and its answer too when it ends: many at once have half of
    their answers. Running ones need at least what is in use.
    """
    usage, queue = newest.kv_usage_ratio, newest.queue
    capacity = window.cache.capacity_tokens
    if usage is None or queue.demand is None or queue.waiting is None:
        return _Load(usage)
    running, each = queue.demand - queue.waiting, _share_of_one(window, usage, queue)
    usable = 1.0 - kept_tokens(window.cache) / capacity if capacity else 1.0
    if each is None:
        return _Load(usage, usage / usable if queue.waiting <= 0 else None)
    return _Load(usage, _with_queue(max(usage, running * each), queue.waiting * each, more, most) / usable)


def _share_of_one(window: EngineWindow, usage: float, queue: Queue) -> float | None:
    """Return the share of the pool that one more request takes, by its tokens or by those that run; None if unknown.

    Where layers differ, tokens do not say what a request takes: it counts as much as a running one on average.
    """
    running = (queue.demand or 0.0) - (queue.waiting or 0.0)
    capacity, prompt = window.cache.capacity_tokens, typical_prompt_tokens(window)
    if capacity is None or prompt is None or window.cache.layers_differ:
        return usage / running if running >= 1 and usage > 0 else None
    share = placed_share(window)
    return (prompt * (1.0 if share is None else share) + window.of_histograms(answer_mean_tokens) / 2) / capacity


def _sequences(context: Context, queue: Queue, more: float | None, most: _Most) -> _Load:
    cap = context.max_num_seqs
    if not cap or queue.demand is None or queue.waiting is None:
        return _Load()
    running = (queue.demand - queue.waiting) / cap
    return _Load(running, _with_queue(running, queue.waiting / cap, more, most))


def _prefill(window: EngineWindow, context: Context, queue: Queue, more: float | None) -> _Load:
    """Return the time that prompts take: by Little's law, how many are computed at a time, if each fills its steps.

    Prompts too short to fill a step share one, and as many more fit in as it has room for.
    """
    many = _prefilling(window, context)
    if many is None:
        return _Load()
    # Without a queue, prompts come at random and are computed one after the other, each for as long as the others, so
    # that at 0.6 of the time there is one of them on average already: L = r + r^2 / (2 (1 - r)), the queue M/D/1
    # (Pollaczek-Khinchine), solved for r.
    used = min(1.0, many) if (queue.waiting or 0.0) >= 1.0 else 1.0 + many - math.hypot(1.0, many)
    return _Load(used, None if more is None else used * (1.0 + more))


def _prefilling(window: EngineWindow, context: Context) -> float | None:
    """Return how many prompts are being computed at a time, on average, if each filled its steps."""
    seconds = window.per_event("prefill_seconds", "prefilled", least=RECENT_STARTS, seconds=window.seconds)
    finished = window.per_event(
        "finished_prompt_tokens", "finished_prompts", least=RECENT_STARTS, seconds=window.seconds
    )
    tokens, started = window.points.rate("prompt_tokens"), window.points.rate("started")
    if tokens is None or started is None:
        return None
    if not tokens or not started:
        return 0.0
    if seconds is None or not finished:
        return None
    prompt, share = tokens / started, computed_share(window)
    # From so many prompt tokens on, a step takes no more, or takes longer for each that is added.
    enough = context.thresholds.batch.prefill_full_step_min_tokens
    full = min(enough, context.max_num_batched_tokens or enough)
    return tokens * seconds / finished * min(1.0, prompt * (1.0 if share is None else share) / full)
