"""PURE: polls, and what many readings come to: sums over a row of polls, a line, quantiles, a cumulative histogram."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final

from kvpressure.model.record import changed, record
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
    if before is None or "prefill_tokens" not in point.counters:
        return point
    steps, tokens = grown(before, point, "decode_steps"), grown(before, point, "generation_tokens")
    if not steps or tokens is None or steps < _LEAST_STEPS:
        return point
    most = max(values((before, point), "running"), default=0.0) + (grown(before, point, "started") or 0.0) + 0.5
    return changed(point, gauges={**point.gauges, BATCH: tokens / steps}) if tokens / steps <= most else point


def batch_of(point: Point) -> float:
    """Return the batch at a poll: that of its steps if known, else that of the page; 0 without either."""
    gauges = point.gauges
    return gauges[BATCH] if BATCH in gauges else gauges.get("running", 0.0)


def values(points: Sequence[Point], gauge: str) -> Sequence[float]:
    """Return the readings of a gauge, polls without it left out."""
    if isinstance(points, Polls):
        return points.values(gauge)
    return [point.gauges[gauge] for point in points if gauge in point.gauges]


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return sum(values) / len(values)


def growth(points: Sequence[Point], counter: str) -> float | None:
    """Return how much a counter grew from the first reading to the last; None with fewer than two."""
    first, last = _ends(points, counter)
    return None if first is last else last.counters[counter] - first.counters[counter]


def rate(points: Sequence[Point], counter: str) -> float | None:
    """Return growth per second between the first reading and the last; None with fewer than two."""
    first, last = _ends(points, counter)
    return None if first is last else (last.counters[counter] - first.counters[counter]) / (last.t - first.t)


def grown(before: Point, after: Point, counter: str) -> float | None:
    """Return how much a counter grew between two polls; None where one of them lacks it."""
    first, last = before.counters, after.counters
    return last[counter] - first[counter] if counter in first and counter in last else None


def _ends(points: Sequence[Point], counter: str) -> tuple[Point, Point]:
    """Return the first and the last of the polls that have a counter, the same one twice where fewer than two do."""
    first = last = points[0]
    for first in points:
        if counter in first.counters:
            break
    for last in reversed(points):
        if counter in last.counters:
            return first, last
    return points[0], points[0]


class Polls(list[Point]):
    """Consecutive polls, oldest first, that answer by the name of a signal, hardly ever with a walk over them.

    Readings of gauges are kept in columns from the time they are first asked for. `enter` and `leave` alone may change
    it. What it returns holds until then.
    """

    __slots__ = ("_first", "_no_counters", "_no_gauges", "_readings", "_values", "_whole", "times")

    def __init__(self, points: Sequence[Point] = (), *, whole: Polls | None = None, first: int = 0) -> None:
        super().__init__(points)
        self.times: list[float] = [point.t for point in points] if whole is None else whole.times[first:]
        self._whole, self._first = whole, first
        self._no_counters: set[str] = set()
        self._no_gauges: set[str] = set()
        """Those that were asked for, and that no poll has."""
        self._readings: dict[str, list[float | None]] = {}
        self._values: dict[str, list[float]] = {}

    def enter(self, point: Point) -> None:
        """Take the newest poll in."""
        self.append(point)
        self.times.append(point.t)
        self._no_counters -= point.counters.keys()
        self._no_gauges -= point.gauges.keys()
        gauges, values = point.gauges, self._values
        for gauge, readings in self._readings.items():
            if gauge in gauges:
                readings.append(gauges[gauge])
                values[gauge].append(gauges[gauge])
            else:
                readings.append(None)

    def leave(self) -> Point:
        """Let the oldest poll go."""
        del self.times[0]
        for gauge, readings in self._readings.items():
            if readings[0] is not None:
                del self._values[gauge][0]
            del readings[0]
        return self.pop(0)

    def newest(self, first: int) -> Polls:
        """Return the polls from the place `first` on."""
        return Polls(self[first:], whole=self, first=first)

    def readings(self, gauge: str) -> Sequence[float | None]:
        """Return the reading of a gauge at each poll, None where it lacks it."""
        if gauge in self._readings:
            return self._readings[gauge]
        return [None] * len(self) if gauge in self._no_gauges else self._kept(gauge)

    def _kept(self, gauge: str) -> Sequence[float | None]:
        """Return the readings of a gauge, and keep them from now on if there are any."""
        if self._whole is None:
            readings = [point.gauges.get(gauge) for point in self]
        else:
            readings = list(self._whole.readings(gauge)[self._first :])
        self._values[gauge] = [value for value in readings if value is not None]
        if self._values[gauge]:
            self._readings[gauge] = readings
        else:
            self._no_gauges.add(gauge)
        return readings

    def values(self, gauge: str) -> Sequence[float]:
        """Return the readings of a gauge, polls without it left out."""
        if gauge not in self._readings and gauge not in self._no_gauges:
            self._kept(gauge)
        return self._values[gauge]

    def mean(self, gauge: str) -> float | None:
        """Return the mean of a gauge; None where no poll has it."""
        values = self.values(gauge)
        return sum(values) / len(values) if values else None

    def max(self, gauge: str) -> float | None:
        """Return the highest reading of a gauge; None where no poll has it."""
        values = self.values(gauge)
        return max(values) if values else None

    def growth(self, counter: str) -> float | None:
        """Return how much a counter grew from the first reading to the last; None with fewer than two."""
        if not self:
            return None
        first, last = self[0], self[-1]
        if counter not in first.counters or counter not in last.counters:
            first, last = self._ends(counter)
        return None if first is last else last.counters[counter] - first.counters[counter]

    def rate(self, counter: str) -> float | None:
        """Return growth per second between the first reading and the last; None with fewer than two."""
        if not self:
            return None
        first, last = self[0], self[-1]
        if counter not in first.counters or counter not in last.counters:
            first, last = self._ends(counter)
        return None if first is last else (last.counters[counter] - first.counters[counter]) / (last.t - first.t)

    def _ends(self, counter: str) -> tuple[Point, Point]:
        """Return the first and the last poll that have a counter, the same one twice where fewer than two do."""
        if counter in self._no_counters:
            return self[0], self[0]
        ends = _ends(self, counter)
        if counter not in ends[0].counters:
            self._no_counters.add(counter)
        return ends


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
    ordered = sorted([pair for pair in pairs if pair[1] > 0], key=itemgetter(0))
    if not ordered:
        return None
    weights = [weight for _, weight in ordered]
    total, up_to = math.fsum(weights), list(itertools.accumulate(weights))
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
        st += t
        sv += v
        stt += t * t
        stv += t * v
        svv += v * v
    tt = stt - st * st / n
    tv = stv - st * sv / n
    vv = svv - sv * sv / n
    if tt <= 0:
        return None
    return Line(tv / tt, min(1.0, tv * tv / (tt * vv)) if vv > 0 else 0.0, points[-1][0] - t0)
