"""Polls, and sums over some that lie in one row: what every feature of a named window is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvpressure.model.record import record


@record
class Point:
    """One poll: gauges as read, counters made monotonic."""

    t: float
    gauges: Mapping[str, float]
    counters: Mapping[str, float]


def values(points: Sequence[Point], gauge: str) -> list[float]:
    """Return the readings of a gauge, polls without it left out."""
    return [value for point in points if (value := point.gauges.get(gauge)) is not None]


def mean(values: Sequence[float]) -> float:
    """Mean of at least one value."""
    return sum(values) / len(values)


def growth(points: Sequence[Point], counter: str) -> float | None:
    """How much a counter grew from the first reading to the last; None with fewer than two."""
    ends = _ends(points, counter)
    return None if ends is None else ends[1].counters[counter] - ends[0].counters[counter]


def rate(points: Sequence[Point], counter: str) -> float | None:
    """Growth per second between the first reading and the last; None with fewer than two."""
    ends = _ends(points, counter)
    return None if ends is None else (ends[1].counters[counter] - ends[0].counters[counter]) / (ends[1].t - ends[0].t)


def _ends(points: Sequence[Point], counter: str) -> tuple[Point, Point] | None:
    first = next((point for point in points if counter in point.counters), None)
    last = next((point for point in reversed(points) if counter in point.counters), None)
    return None if first is None or last is None or first is last else (first, last)


def arrived_so_far(point: Point) -> float | None:
    """Return requests that ended plus those the engine holds; None when the poll lacks one of them."""
    finished = point.counters.get("finished")
    running, waiting = point.gauges.get("running"), point.gauges.get("waiting")
    return None if finished is None or running is None or waiting is None else finished + running + waiting
