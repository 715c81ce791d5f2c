"""PURE: bounded history of one engine; counter deltas with resets, histogram deltas, series.

Time arrives inside the samples. Counters are made monotonic as they enter (a fall is a restart from zero, as in
Prometheus), so that every delta is simply last minus first.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from kvpressure.model.samples import CacheConfig, EngineSample, HistogramSample
from kvpressure.signals.histograms import SpacedHistograms
from kvpressure.signals.monotonic import Monotonic
from kvpressure.signals.points import BATCH, Line, Point, Polls, line, with_batch

MAX_POINTS = 600
"""Points kept per window at most: ten minutes at 1 Hz; at faster polling the window shortens rather than grows."""

MAX_HISTOGRAM_POINTS = 32
LONG_POINTS = 24

T = TypeVar("T")

CLOCK_SKEW_SECONDS = 60.0
"""How far the clock of an engine's host may be behind ours, at least: a process that began this long before the last
poll may still be one that began after it."""


class EngineWindow:
    """The recent history of one engine: polls over `seconds`, histograms over `long_window_seconds`.

    >>> window = EngineWindow(seconds=60, long_window_seconds=600)
    >>> window.add(0.0, EngineSample("m", "0", {"running": 1.0}, {"steps": 10.0}))
    >>> window.add(1.0, EngineSample("m", "0", {"running": 3.0}, {"steps": 25.0}))
    >>> window.points.mean("running"), window.points.growth("steps"), window.points.rate("steps")
    (2.0, 15.0, 15.0)
    """

    def __init__(self, seconds: float, long_window_seconds: float) -> None:
        self.seconds = seconds
        self.long_window_seconds = long_window_seconds
        self.points = Polls()
        self.t = -math.inf
        """Time of the newest point; -inf before the first."""
        self.cache = CacheConfig()
        self.multiprocess = False
        self.joined = -math.inf
        """When a process answered last that had counted elsewhere before: its progress is known since."""
        self._monotonic = Monotonic()
        self._recent = SpacedHistograms(seconds, seconds / (MAX_HISTOGRAM_POINTS - 2), MAX_HISTOGRAM_POINTS)
        self._long = SpacedHistograms(long_window_seconds, long_window_seconds / LONG_POINTS, LONG_POINTS + 1)
        self._older: deque[Point] = deque(maxlen=LONG_POINTS)
        self._highest: deque[tuple[float, float]] = deque(maxlen=MAX_POINTS)
        self._names: dict[tuple[str, ...], float] = {}
        """What polls of the window had, gauges and counters; and when a poll last had these."""
        self._signals: frozenset[str] = frozenset()
        self._once: dict[Callable[[EngineWindow], Any], Any] = {}
        self._once_of_histograms: dict[tuple[object, ...], Any] = {}
        self._taken = 0
        self._intervals: defaultdict[Callable[[Point, Point], Any], _Kept] = defaultdict(_Kept)
        self._polls: defaultdict[Callable[..., Any], _Kept] = defaultdict(_Kept)

    def add(
        self,
        t: float,
        sample: EngineSample,
        *,
        restarted: bool = False,
        started: float | None = None,
        multiprocess: bool = False,
    ) -> bool:
        """Take one poll in; False for a poll that is not newer than the last one, which is dropped.

        `started` is when the process that answered began, None where not known. One that began long before the last
        poll and counts less, or is another one, has counted elsewhere: one of several replicas behind one address. What
        it counted before is not growth.
        """
        if t <= self.t:
            return False
        older = started is not None and started < self.t - CLOCK_SKEW_SECONDS
        if older and (restarted or self._monotonic.fell(sample.counters)):
            self._monotonic.join(sample)
            self.joined = t
        elif restarted:
            self._monotonic.restart()
        if restarted:
            self._highest.clear()
        self.multiprocess = multiprocess
        if sample.cache is not None:
            self.cache = sample.cache
        point = Point(t, sample.gauges, self._monotonic.counters(sample.counters))
        point = with_batch(point, self.points[-1] if self.points else None)
        self._enter(point)
        self._once = {}
        self._note_names((*sample.gauges, *sample.counters), t)
        self._note_highest(t, point.gauges.get(BATCH, point.gauges.get("running")))
        if sample.histograms:
            self._once_of_histograms.clear()
            histograms = self._monotonic.histograms(sample.histograms)
            self._recent.add(t, histograms)
            self._long.add(t, histograms)
        return True

    def _enter(self, point: Point) -> None:
        if len(self.points) == MAX_POINTS:
            self.points.leave()
        self.points.enter(point)
        self.t = point.t
        self._taken += 1
        oldest = point.t - self.seconds
        while self.points[0].t < oldest:
            self._keep_older(self.points.leave())

    def _note_names(self, names: tuple[str, ...], t: float) -> None:
        """Keep the names of what polls of the window had; most have the same ones."""
        are_new = names not in self._names
        self._names[names] = t
        gone = [others for others, last in self._names.items() if last < self.points[0].t]
        for others in gone:
            del self._names[others]
        if are_new or gone:
            self._signals = frozenset(itertools.chain(*self._names))

    def _note_highest(self, t: float, running: float | None) -> None:
        """Keep the running maximum: readings that no later one reached."""
        while self._highest and self._highest[0][0] < t - self.long_window_seconds:
            self._highest.popleft()
        if running is not None:
            while self._highest and self._highest[-1][1] <= running:
                self._highest.pop()
            self._highest.append((t, running))

    def highest_running(self) -> float | None:
        """Return the largest batch read over the long window, since the server last started."""
        return self._highest[0][1] if self._highest else None

    def _keep_older(self, point: Point) -> None:
        """Thin what leaves the window out to a few points of the long one."""
        if not self._older or point.t - self._older[-1].t >= self.long_window_seconds / LONG_POINTS:
            self._older.append(point)
        while self._older and self._older[0].t < self.t - self.long_window_seconds:
            self._older.popleft()

    def of_histograms(self, compute: Callable[..., T], *arguments: float | str) -> T:
        """Return `compute(self, *arguments)`, a value of the histograms, computed again when a page has brought some.

        Histograms come with every few polls only, and quantiles of them are dear.
        """
        key = (compute, *arguments)
        if key not in self._once_of_histograms:
            self._once_of_histograms[key] = compute(self, *arguments)
        value: T = self._once_of_histograms[key]
        return value

    def once(self, compute: Callable[[EngineWindow], T]) -> T:
        """Return `compute(self)`, computed once a poll: what several signals start from."""
        if compute not in self._once:
            self._once[compute] = compute(self)
        value: T = self._once[compute]
        return value

    def signals(self) -> frozenset[str]:
        """Return names of the gauges and counters that some poll of the window had."""
        return self._signals

    def histograms(self) -> frozenset[str]:
        """Return names of the histograms that the page has, as signals: `ttft_histogram` of `ttft`."""
        return frozenset([f"{name}_histogram" for name in self._recent.newest])

    def shows(self, signal: str) -> bool:
        """Whether some poll of the window had this gauge or counter."""
        return signal in self._signals

    def trend(self, gauge: str, seconds: float) -> Line | None:
        """Return the straight line through the readings of a gauge over the last `seconds`; None with too few."""
        first = bisect_left(self.points.times, self.t - seconds)
        readings = zip(self.points.times[first:], self.points.readings(gauge)[first:], strict=True)
        return line([(t, value) for t, value in readings if value is not None])

    def newest(self, counter: str) -> float | None:
        """Return the newest reading of a counter in the window."""
        counters = self.points[-1].counters if self.points else {}
        if counter in counters:
            return counters[counter]
        if counter not in self._signals:
            return None
        return next((point.counters[counter] for point in reversed(self.points) if counter in point.counters), None)

    def long_delta(self, counter: str) -> float:
        """Return how much a counter grew within the long window, 0 where it is not known."""
        newest = self.newest(counter)
        if newest is None:
            return 0.0
        for point in itertools.chain(self._older, self.points):
            if counter in point.counters:
                return newest - point.counters[counter]
        return 0.0

    def per_event(self, total: str, events: str, *, least: float, seconds: float) -> float | None:
        """Return growth of `total` per growth of `events` over the shortest time up to now with enough of them.

        It is at least `seconds`, and until `events` grew by `least`, beyond the window if need be; with fewer than
        `least` in all, everything known. None when there was none.
        """
        question = total, events, least, seconds
        try:
            return self._per_event_in_order(question)
        except LookupError:  # there is no poll, or one lacks a counter
            return _per_event(itertools.chain(reversed(self.points), reversed(self._older)), question)

    def _per_event_in_order(self, question: _PerEvent) -> float | None:
        """Return the same where polls have both. Raises LookupError where one that is looked at has not."""
        total, events, least, seconds = question
        # Neither time nor a counter goes back: once a poll is far enough away, all before it are.
        points = self.points
        newest, newest_t = points[-1].counters, self.t
        low, high = 0, len(points)
        while low < high:
            middle = (low + high) // 2
            point = points[middle]
            if newest[events] - point.counters[events] >= least and newest_t - point.t >= seconds:
                low = middle + 1
            else:
                high = middle
        oldest = points[max(0, low - 1)].counters
        grown, count = newest[total] - oldest[total], newest[events] - oldest[events]
        if low:
            return grown / count
        return _per_event(itertools.chain((points[-1], points[0]), reversed(self._older)), question)

    def seconds_since(
        self,
        measure: Callable[[Point], T],
        count: Callable[[T], float],
        room: Callable[[Point], float | None],
        least: float,
    ) -> float | None:
        """Return how long ago `count`, which never falls, was less than now by the `room` there was then.

        It is of what `measure` gives of a poll, -inf where it is not known. No poll of the window has a `room` below
        `least`. Beyond the oldest poll that is known it is by the rate since then. None where it does not grow.
        """
        measured = self.each_poll(measure)
        now, newest_t = count(measured[-1]) if measured else -math.inf, self.t
        if now == -math.inf:
            return None
        # Polls that have certainly counted too much are left out: all after the first that has.
        after = bisect_right(measured, now - least, key=count)
        points, later_t = self.points, newest_t
        later: tuple[float, float] | None = None
        place = min(after, len(points) - 1)
        older = reversed(self._older)
        while True:
            if place >= 0:
                point, counted = points[place], count(measured[place])
                place -= 1
            elif (before := next(older, None)) is not None:
                point, counted = before, count(measure(before))
            else:
                break
            if counted == -math.inf or (left := room(point)) is None:
                continue
            over = now - counted - left
            if over >= 0:
                share = over / (over - later[0]) if later is not None else 1.0
                return newest_t - (point.t + share * (later_t - point.t))
            later, later_t = (over, left), point.t
        if later is None or later[0] + later[1] <= 0:
            return None
        return (newest_t - later_t) * later[1] / (later[0] + later[1])

    def each_interval(self, compute: Callable[[Point, Point], T]) -> Sequence[T]:
        """Return what `compute` gives for each two consecutive polls (earlier, later), oldest first.

        `compute` is a pure function, called once for each interval; its results are kept while both polls are in the
        window.
        """
        kept, points = self._intervals[compute], self.points
        count = len(points)
        for later in range(max(1, count - self._taken + kept.taken), count):
            kept.results.append(compute(points[later - 1], points[later]))
        del kept.results[: len(kept.results) + 1 - count]
        kept.taken = self._taken
        return kept.results

    def each_poll(self, compute: Callable[..., T], *arguments: object) -> Sequence[T]:
        """Return what `compute(poll, *arguments)` gives for each poll, oldest first.

        Its results are kept while their polls are in the window and the arguments are what they were.
        """
        kept, points = self._polls[compute], self.points
        count = len(points)
        if kept.arguments != arguments:
            kept = self._polls[compute] = _Kept(arguments)
        for point in points[max(0, count - self._taken + kept.taken) :]:
            kept.results.append(compute(point, *arguments))
        del kept.results[: len(kept.results) - count]
        kept.taken = self._taken
        return kept.results

    def latest(self, seconds: float, least: int) -> Polls:
        """Return the polls of the last `seconds`, but at least the newest `least` of them, oldest first."""
        points = self.points
        first = bisect_left(points.times, self.t - seconds)
        return points.newest(max(0, min(first, len(points) - least)))

    def histogram(self, name: str, seconds: float | None = None) -> HistogramSample | None:
        """Return what a histogram observed within the window, or its last `seconds`.

        None when unknown or when nothing was observed.
        """
        first = 0 if seconds is None else self._recent.place(self.t - seconds)
        return self._recent.growth(name, first)

    def long_histogram(self, name: str) -> HistogramSample | None:
        """Return what a histogram observed within the long window."""
        return self._long.growth(name)

    def total(self, name: str) -> HistogramSample | None:
        """Return the histogram since this engine was first polled or its server started, monotonic over restarts."""
        return self._recent.newest.get(name)


@dataclass(slots=True)
class _Kept:
    """Results of a function of polls with these arguments, as of so many polls taken in."""

    arguments: tuple[object, ...] = ()
    taken: int = 0
    results: list[Any] = field(default_factory=list)


_PerEvent: TypeAlias = tuple[str, str, float, float]
"""What `EngineWindow.per_event` is asked for: total, events, least, seconds."""


def _per_event(points: Iterable[Point], question: _PerEvent) -> float | None:
    """Return that of polls, the newest first, by a walk over them."""
    total, events, least, seconds = question
    newest, per_event = None, None
    for point in points:
        if total not in point.counters or events not in point.counters:
            continue
        newest = newest or point
        count = newest.counters[events] - point.counters[events]
        if count > 0:
            per_event = (newest.counters[total] - point.counters[total]) / count
        if count >= least and newest.t - point.t >= seconds:
            break
    return per_event
