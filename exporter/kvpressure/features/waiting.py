"""How many requests wait for a place in the batch: streams between two pieces of input are counted as waiting too."""

from __future__ import annotations

from collections.abc import Sequence

from kvpressure.config.thresholds import Thresholds
from kvpressure.features.points import mean, values
from kvpressure.features.windows import EngineWindow, Point


def streams_idle(points: Sequence[Point], window: EngineWindow, limits: Thresholds) -> bool:
    """Whether the requests that are put off want nothing now, by Little's law.

    Whoever waits n at a time, and starts r a second, waits n / r seconds. Where first tokens come much sooner than
    that, or no later than for those that wait for their turn, those that are put off are not on their way to one: they
    are streams whose next piece of input is missing.
    """
    deferred, started = values(points, "waiting_deferred"), window.rate("started")
    ttft = window.histogram("ttft")
    if not deferred or mean(deferred) <= 0 or not started or ttft is None:
        return False
    if window.t - window.points[0].t < limits.stream_known_min_seconds:
        return False
    seconds, queued = ttft.sum / ttft.count, values(points, "waiting_capacity")
    turn = mean(queued) if queued else 0.0
    if turn < 1 and seconds > limits.stream_first_token_max_seconds:
        return False
    return started * seconds < turn + limits.deferred_min_expected_ratio * mean(deferred)


def waiting_of(point: Point, *, streams: bool) -> float | None:
    """Requests that wait at one poll; those put off count unless they are idle `streams`. None where not known."""
    waiting = point.gauges.get("waiting")
    if waiting is None or not streams:
        return waiting
    return waiting - point.gauges.get("waiting_deferred", 0.0)
