"""How many requests wait for a place in the batch, and what for: the kinds of requests that engines call deferred.

Streams between two pieces of input are counted as waiting too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.family import json_value
from kvpressure.model.record import record
from kvpressure.signals.points import Point, Polls, mean
from kvpressure.signals.windows import EngineWindow

FAMILIES: Final = (
    json_value("offload_hit_ratio", "Share of the prompt tokens looked up in an offload tier that it had."),
    json_value(
        "offload_loads_under_way",
        "Loads from an offload tier under way, mean over the window (seconds of loads per second).",
    ),
)


@record
class Queue:
    """Requests that run and wait, over some polls; None where not known.

    `demand` are those that run or wait and `waiting` those that wait, on average; `waiting_ratio` is the share of polls
    in which any waited. `waited_steps` is how many steps pass while a request waits, by Little's law.
    `deferred_ratio` is the share of waiting requests that the engine has deferred, over the polls in which any waited,
    `fetching_ratio` of those whose KV comes from elsewhere; `reasons_known` is whether the page has the reasons.
    `all_deferred_ratio` is the share of polls in which nothing ran and all that waited were deferred, `unchanged`
    whether they were as many all the time. `ended` is how many requests ended, `newest` how many wait
    in the newest poll.
    """

    demand: float | None = None
    waiting: float | None = None
    waiting_ratio: float | None = None
    waited_steps: float | None = None
    reasons_known: bool = True
    deferred_ratio: float | None = None
    fetching_ratio: float | None = None
    all_deferred_ratio: float | None = None
    unchanged: bool = False
    ended: float | None = None
    newest: float | None = None


def queue_of(points: Polls, *, streams: bool) -> Queue:
    """Return what at least one poll shows of running and waiting requests; idle `streams` do not count as waiting."""
    running, deferred = points.values("running"), points.values("waiting_deferred")
    queue = waiting = points.values("waiting")
    if streams:
        waiting = [value for point in points if (value := waiting_of(point, streams=True)) is not None]
    return Queue(
        demand=mean(running) + mean(waiting) if running and waiting else None,
        waiting=mean(waiting) if waiting else None,
        waiting_ratio=len([True for value in waiting if value >= 1]) / len(waiting) if waiting else None,
        waited_steps=_waited_steps(points, waiting),
        reasons_known=bool(deferred),
        deferred_ratio=0.0 if streams else _share(deferred, queue),
        fetching_ratio=_share(points.values("fetching"), queue),
        all_deferred_ratio=mean(all_deferred) if (all_deferred := _all_deferred(points)) else None,
        unchanged=len(set(queue)) == 1,
        newest=waiting[-1] if waiting else None,
        ended=points.growth("finished"),
    )


def _waited_steps(points: Polls, waiting: Sequence[float]) -> float | None:
    """Return how many steps pass while a request waits; where none has started, at least as many as there were."""
    steps, started = points.growth("steps"), points.growth("started")
    return mean(waiting) * steps / max(1.0, started) if waiting and steps and started is not None else None


def _share(some: Sequence[float], waiting: Sequence[float]) -> float | None:
    """Return the share of some kind in all that wait over the polls."""
    return min(1.0, sum(some) / sum(waiting)) if some and sum(waiting) > 0 else None


def _all_deferred(points: Polls) -> list[float]:
    """Return for each poll that shows it whether nothing ran and all that waited were deferred."""
    names = ("running", "waiting", "waiting_deferred")
    return [
        1.0 if running == 0 and deferred >= waiting >= 1 else 0.0
        for running, waiting, deferred in zip(*map(points.readings, names), strict=True)
        if running is not None and waiting is not None and deferred is not None
    ]


def streams_idle(points: Polls, window: EngineWindow, thresholds: Thresholds) -> bool:
    """Whether the deferred requests are streams without input now, by Little's law.

    If n wait at a time, and r a second start, each waits n / r seconds. Where first tokens come much sooner than that,
    or no later than for those that wait for their turn, the deferred ones are not on their way to one: they are streams
    whose next piece of input is missing.
    """
    deferred, started = mean(points.values("waiting_deferred") or [0.0]), window.points.rate("started")
    ttft = window.histogram("ttft")
    if deferred <= 0 or not started or ttft is None:
        return False
    if window.t - window.points[0].t < thresholds.queue.stream_known_min_seconds:
        return False
    seconds, turn = ttft.sum / ttft.count, mean(points.values("waiting_capacity") or [0.0])
    if turn < 1 and seconds > thresholds.queue.stream_first_token_max_seconds:
        return False
    return started * seconds < turn + thresholds.queue.deferred_min_expected_ratio * deferred


def waiting_of(point: Point, *, streams: bool) -> float | None:
    """Return how many requests wait at one poll, None where not known; deferred ones count unless idle `streams`."""
    waiting = point.gauges.get("waiting")
    return waiting if waiting is None or not streams else waiting - point.gauges.get("waiting_deferred", 0.0)


@record
class Deferral:
    """What the window shows of the reasons to defer requests; None where the page does not say.

    `slots` is how many adapters (LoRA) the batch may have at once, `adapters_oversubscribed` whether more than that
    were requested since the server started, `slots_taken` whether all slots were taken at a time. `connector` is
    whether a connector looks prompts up in a cache outside the engine, `brought_ratio` the share of their tokens that
    it finds there, `remote` and `offload` are what kind of it shows on the page. `images` is whether requests have
    brought any.

    Over the longer window: `failed_loads` are loads and transfers of KV that failed, `expired_transfers` finished
    prompts that nobody fetched in time; `read_seconds_per_gigabyte` is how long slow tiers of an offload take.
    `dropped_stores` are those for which the tier had no room. One load from it brings `load_bytes_per_second`, or
    `load_tokens_per_second` where bytes are not counted; `prompt_tokens_per_second` is how fast one prompt is computed.
    `loads` are under way at a time, on average over the window.
    """

    slots: float | None = None
    adapters_oversubscribed: bool | None = None
    slots_taken: bool | None = None
    connector: bool | None = None
    brought_ratio: float | None = None
    remote: bool = False
    offload: bool = False
    images: bool | None = None
    failed_loads: float = 0.0
    expired_transfers: float = 0.0
    read_seconds_per_gigabyte: float | None = None
    dropped_stores: float = 0.0
    loads: float | None = None
    load_bytes_per_second: float | None = None
    load_tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None

    @property
    def offload_hit_ratio(self) -> float | None:
        """The share of the tokens looked up in an offload tier that it had; None without one, or where not known."""
        return self.brought_ratio if self.offload and not self.remote else None


def deferral_of(window: EngineWindow) -> Deferral:
    """Return what the window's polls show."""
    looked_up = _ever(window, "external_queries")
    slots, running = window.points.max("adapter_slots"), window.points.max("adapters_running")
    requested = window.points.max("adapters_seen")
    return Deferral(
        slots=slots,
        adapters_oversubscribed=None if slots is None or requested is None else requested > slots,
        slots_taken=None if slots is None or running is None else running >= slots,
        # Before the first prompt nothing can have been looked up.
        connector=looked_up if looked_up or _ever(window, "prompt_tokens") else None,
        brought_ratio=_brought_ratio(window),
        remote=window.shows("remote_transfers"),
        offload=window.shows("offload_loads"),
        images=_ever(window, "encoder_queries"),
        failed_loads=sum([window.long_delta(name) for name in _FAILED]),
        expired_transfers=window.long_delta("expired_transfers"),
        read_seconds_per_gigabyte=_seconds_per_gigabyte(window),
        dropped_stores=window.long_delta("dropped_stores"),
        loads=window.points.rate("offload_load_seconds"),
        load_bytes_per_second=_speed(window, "offload_load_bytes", "offload_load_seconds"),
        load_tokens_per_second=_speed(window, "offload_load_tokens", "offload_load_seconds"),
        prompt_tokens_per_second=_speed(window, "computed_prompt_tokens", "prefill_seconds"),
    )


_FAILED: Final = ("failed_loads", "unplaced_loads", "failed_transfers")
GIGABYTE: Final = 1e9


def _speed(window: EngineWindow, what: str, seconds: str) -> float | None:
    """Return how much one job brings a second; None where there was none in the longer window."""
    brought, took = window.long_delta(what), window.long_delta(seconds)
    return brought / took if brought > 0 and took > 0 else None


def _seconds_per_gigabyte(window: EngineWindow) -> float | None:
    """Return how long slow tiers take to read a gigabyte, of all jobs at once; None where none was read lately."""
    speed = _speed(window, "offload_read_bytes", "offload_read_seconds")
    return None if speed is None else GIGABYTE / speed


def _brought_ratio(window: EngineWindow) -> float | None:
    """Return the share over the window; without a lookup in it, since the server started."""
    hits, queries = window.points.growth("external_hits"), window.points.growth("external_queries")
    if not queries:
        hits, queries = window.newest("external_hits"), window.newest("external_queries")
    return None if hits is None or not queries else min(1.0, hits / queries)


def _ever(window: EngineWindow, counter: str) -> bool | None:
    """Whether the newest reading of a counter is above 0."""
    newest = window.newest(counter)
    return None if newest is None else newest > 0
