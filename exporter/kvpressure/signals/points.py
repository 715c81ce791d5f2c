"""PURE: polls, and what many readings come to: sums over a row of polls, a line, quantiles, a cumulative histogram."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

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
    return point.gauges.get(BATCH, point.gauges.get("running", 0.0))


def values(points: Sequence[Point], gauge: str) -> Sequence[float]:
    """Return the readings of a gauge, polls without it left out."""
    if isinstance(points, Polls):
        return points.values(gauge)
    return [value for point in points if (value := point.gauges.get(gauge)) is not None]


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return sum(values) / len(values)


_DEMAND: Final = frozenset({"running", "waiting"})


def demand(points: Sequence[Point]) -> float | None:
    """Return the mean of the requests that run or wait, over the polls that have both; None where none has."""
    if isinstance(points, Polls):
        return points.demand()
    found = [point.gauges["running"] + point.gauges["waiting"] for point in points if point.gauges.keys() >= _DEMAND]
    return mean(found) if found else None


def growth(points: Sequence[Point], counter: str) -> float | None:
    """Return how much a counter grew from the first reading to the last; None with fewer than two."""
    ends = points.ends(counter) if isinstance(points, Polls) else _ends(points, counter)
    return None if ends is None else ends[0]


def rate(points: Sequence[Point], counter: str) -> float | None:
    """Return growth per second between the first reading and the last; None with fewer than two."""
    ends = points.ends(counter) if isinstance(points, Polls) else _ends(points, counter)
    return None if ends is None else ends[0] / ends[1]


def grown(before: Point, after: Point, counter: str) -> float | None:
    """Return how much a counter grew between two polls; None where one of them lacks it."""
    first, last = before.counters.get(counter), after.counters.get(counter)
    return None if first is None or last is None else last - first


_Ends: TypeAlias = tuple[float, float]
"""By how much a counter grew between its first reading and its last, and the seconds between these."""


def _ends(points: Sequence[Point], counter: str) -> _Ends | None:
    # Nearly every poll has every counter: the first and the last of them are looked at first.
    first = last = None
    for point in points:
        if counter in point.counters:
            first = point
            break
    for point in reversed(points):
        if counter in point.counters:
            last = point
            break
    if first is None or last is None or first is last:
        return None
    return last.counters[counter] - first.counters[counter], last.t - first.t


class Polls(list[Point]):
    """Consecutive polls, oldest first, that answer by the name of a signal without a walk over them.

    Readings are kept in columns from the time they are first asked for; sums and ends are computed once between two
    polls. `enter` and `leave` alone may change it. What it returns holds until then.
    """

    __slots__ = ("_columns", "_counted", "_ends", "_first", "_means", "_values", "_whole", "times")

    def __init__(self, points: Sequence[Point] = (), *, whole: Polls | None = None, first: int = 0) -> None:
        super().__init__(points)
        last = first + len(points)
        self.times: list[float] = [point.t for point in points] if whole is None else whole.times[first:last]
        self._whole, self._first = whole, first
        self._columns: dict[str, list[float | None]] = {}
        self._counted: dict[str, list[float | None]] = {}
        self._values: dict[str, Sequence[float]] = {}
        self._means: dict[str, float | None] = {}
        self._ends: dict[str, _Ends | None] = {}

    def enter(self, point: Point) -> None:
        """Take the newest poll in."""
        self.append(point)
        self.times.append(point.t)
        gauges = point.gauges
        for gauge, column in self._columns.items():
            column.append(gauges.get(gauge))
        counters = point.counters
        for counter, column in self._counted.items():
            column.append(counters.get(counter))
        self._values, self._means, self._ends = {}, {}, {}

    def leave(self) -> Point:
        """Let the oldest poll go."""
        del self.times[0]
        for column in self._columns.values():
            del column[0]
        for column in self._counted.values():
            del column[0]
        self._values, self._means, self._ends = {}, {}, {}
        return self.pop(0)

    def newest(self, first: int, last: int | None = None) -> Polls:
        """Return the polls from the place `first` on, to the one before `last` if that is given."""
        return Polls(self[first:last], whole=self, first=first)

    def since(self, t: float) -> Polls:
        """Return the polls from `t` (unix seconds) on."""
        return self.newest(bisect.bisect_left(self.times, t))

    def readings(self, gauge: str) -> Sequence[float | None]:
        """Return the reading of a gauge at each poll, None where it lacks it."""
        if gauge in self._columns:
            return self._columns[gauge]
        if self._whole is None:
            column = [point.gauges.get(gauge) for point in self]
        else:
            column = list(self._whole.readings(gauge)[self._first : self._first + len(self)])
        self._columns[gauge] = column
        return column

    def counts(self, counter: str) -> Sequence[float | None]:
        """Return the reading of a counter at each poll, None where it lacks it."""
        if counter not in self._counted:
            self._counted[counter] = [point.counters.get(counter) for point in self]
        return self._counted[counter]

    def values(self, gauge: str) -> Sequence[float]:
        """Return the readings of a gauge, polls without it left out."""
        if gauge not in self._values:
            self._values[gauge] = [value for value in self.readings(gauge) if value is not None]
        return self._values[gauge]

    def mean(self, gauge: str) -> float | None:
        """Return the mean of a gauge; None where no poll has it."""
        if gauge not in self._means:
            readings = self.values(gauge)
            self._means[gauge] = sum(readings) / len(readings) if readings else None
        return self._means[gauge]

    def ends(self, counter: str) -> _Ends | None:
        """Return what a counter grew by, and over which time; None with fewer than two readings."""
        if counter not in self._ends:
            self._ends[counter] = _ends(self, counter)
        return self._ends[counter]

    def growth(self, counter: str) -> float | None:
        """Return how much a counter grew from the first reading to the last; None with fewer than two."""
        ends = self._ends[counter] if counter in self._ends else self.ends(counter)
        return None if ends is None else ends[0]

    def rate(self, counter: str) -> float | None:
        """Return growth per second between the first reading and the last; None with fewer than two."""
        ends = self._ends[counter] if counter in self._ends else self.ends(counter)
        return None if ends is None else ends[0] / ends[1]

    def demand(self) -> float | None:
        """Return the mean of the requests that run or wait, over the polls that have both; None where none has."""
        found = [
            running + waiting
            for running, waiting in zip(self.readings("running"), self.readings("waiting"), strict=True)
            if running is not None and waiting is not None
        ]
        return mean(found) if found else None


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
    ordered = sorted([pair for pair in pairs if pair[1] > 0])
    if not ordered:
        return None
    total = math.fsum([weight for _, weight in ordered])
    up_to = list(itertools.accumulate([weight for _, weight in ordered]))
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
