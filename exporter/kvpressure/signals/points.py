"""PURE: polls, and what many readings come to: sums over a row of polls, a line, quantiles, a cumulative histogram."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kvpressure.model.record import record
from kvpressure.model.samples import HistogramSample


@record
class Point:
    """One poll: gauges as read, counters made monotonic."""

    t: float
    gauges: Mapping[str, float]
    counters: Mapping[str, float]


BATCH: Final = "batch"
"""Gauge of a poll: the mean batch of the steps since the poll before, where steps without prompts are counted."""
_LEAST_STEPS: Final = 5


def with_batch(point: Point, before: Point | None) -> Point:
    """Return a poll with the batch of the steps since `before`, if there are enough steps.

    More tokens of a step than there are requests are drafts that were accepted.
    """
    # Where prompts are counted when requests end, so are answers: their growth is not that of the steps.
    polls = () if before is None or "prefill_tokens" not in point.counters else (before, point)
    steps, tokens = growth(polls, "decode_steps"), growth(polls, "generation_tokens")
    if not steps or tokens is None or steps < _LEAST_STEPS:
        return point
    most = max(values(polls, "running"), default=0.0) + (growth(polls, "started") or 0.0) + 0.5
    return replace(point, gauges={**point.gauges, BATCH: tokens / steps}) if tokens / steps <= most else point


def batch_of(point: Point) -> float:
    """Return the batch at a poll: that of its steps if known, else that of the page; 0 without either."""
    return point.gauges.get(BATCH, point.gauges.get("running", 0.0))


def values(points: Sequence[Point], gauge: str) -> list[float]:
    """Return the readings of a gauge, polls without it left out."""
    return [value for point in points if (value := point.gauges.get(gauge)) is not None]


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return sum(values) / len(values)


_DEMAND: Final = frozenset({"running", "waiting"})


def demand(points: Sequence[Point]) -> float | None:
    """Return the mean of the requests that run or wait, over the polls that have both; None where none has."""
    found = [point.gauges["running"] + point.gauges["waiting"] for point in points if point.gauges.keys() >= _DEMAND]
    return mean(found) if found else None


def growth(points: Sequence[Point], counter: str) -> float | None:
    """Return how much a counter grew from the first reading to the last; None with fewer than two."""
    ends = _ends(points, counter)
    return None if ends is None else ends[1].counters[counter] - ends[0].counters[counter]


def rate(points: Sequence[Point], counter: str) -> float | None:
    """Return growth per second between the first reading and the last; None with fewer than two."""
    ends = _ends(points, counter)
    return None if ends is None else (ends[1].counters[counter] - ends[0].counters[counter]) / (ends[1].t - ends[0].t)


def _ends(points: Sequence[Point], counter: str) -> tuple[Point, Point] | None:
    first = next((point for point in points if counter in point.counters), None)
    last = next((point for point in reversed(points) if counter in point.counters), None)
    return None if first is None or last is None or first is last else (first, last)


CLOCK_STEP_SECONDS: Final = 5.0
"""A time this much before the last one is a clock that was set back, not a late answer: history starts anew."""


def stepped_back(before: float, t: float) -> bool:
    """Whether the wall clock was set back between two readings."""
    return t < before - CLOCK_STEP_SECONDS


@record
class Line:
    """Least-squares line through points over `seconds`: `slope` per second, `r2` the share of variance explained."""

    slope: float
    r2: float
    seconds: float = 0.0


class Tally:
    """A cumulative histogram that grows by weighted observations; `bounds` without +Inf."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = (*bounds, math.inf)
        self._weights = [0.0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float, weight: float) -> None:
        """Count `value` `weight` times."""
        self._weights[bisect.bisect_left(self._bounds, value)] += weight
        self._sum += value * weight

    def histogram(self) -> HistogramSample:
        """Return everything observed so far. Counts are whole, as OpenMetrics has them; a weight may be seconds."""
        counts = tuple(float(math.floor(count)) for count in itertools.accumulate(self._weights))
        return HistogramSample(self._bounds, counts, self._sum)


def weighted_quantiles(pairs: Iterable[tuple[float, float]], qs: Sequence[float]) -> list[float] | None:
    """Return quantiles of (value, weight) pairs: the smallest value that at least q of the weight does not exceed."""
    ordered = sorted(pair for pair in pairs if pair[1] > 0)
    if not ordered:
        return None
    total = math.fsum(weight for _, weight in ordered)
    up_to = list(itertools.accumulate(weight for _, weight in ordered))
    return [ordered[min(bisect.bisect_left(up_to, q * total), len(ordered) - 1)][0] for q in qs]


def line(points: Sequence[tuple[float, float]]) -> Line | None:
    """Return the least-squares line through (seconds, value) points; None with fewer than three or all at one time."""
    if len(points) < 3:
        return None
    n = float(len(points))
    t0, v0 = points[0]
    st = sv = stt = stv = svv = 0.0
    for at, value in points:
        t, v = at - t0, value - v0
        st, sv, stt, stv, svv = st + t, sv + v, stt + t * t, stv + t * v, svv + v * v
    tt, tv, vv = stt - st * st / n, stv - st * sv / n, svv - sv * sv / n
    if tt <= 0:
        return None
    return Line(tv / tt, min(1.0, tv * tv / (tt * vv)) if vv > 0 else 0.0, points[-1][0] - t0)
