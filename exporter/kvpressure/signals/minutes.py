"""Means over five minutes: a window of one minute mostly shows which of the sessions happen to be active."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from kvpressure.model.view import Interval, Minutes, PoolHits
from kvpressure.signals.windows import EngineWindow

SECONDS: Final = 300.0
SPACING_SECONDS: Final = 10.0
"""Between two readings that are kept: a long prompt is counted at its end, and computed within a few seconds."""
LEAST_SECONDS: Final = 60.0
LONGEST_GAP_SECONDS: Final = 60.0
NEEDED: Final = ("generation_tokens", "prefix_queries", "prefix_hits")
COUNTED: Final = {
    "steps": "steps",
    "generated": "generation_tokens",
    "prompted": "prompt_tokens",
    "computed": "computed_prompt_tokens",
    "finished": "finished",
    "preempted": "preemptions",
}
"""Fields of `Interval`, and the counter that each is the growth of."""
COUNTERS: Final = frozenset((*NEEDED, *COUNTED.values()))


class _Reading(NamedTuple):
    """One poll: counters, and integrals over time since the first one; `busy_seconds` in which a request ran."""

    t: float
    counters: Mapping[str, float]
    running_seconds: float = 0.0
    waiting_seconds: float = 0.0
    busy_seconds: float = 0.0


class LongMeans:
    """What the prefix cache and the batch of one engine did over `SECONDS`; bounded in readings."""

    def __init__(self) -> None:
        self._readings: deque[_Reading] = deque(maxlen=int(SECONDS / SPACING_SECONDS) + 2)
        self._intervals: deque[Interval] = deque()
        """Between each two readings."""
        self._newest: _Reading | None = None

    def forget(self) -> None:
        """Begin again: another process answers."""
        self._readings.clear()
        self._intervals.clear()
        self._newest = None

    def take(self, window: EngineWindow) -> None:
        """Take the newest poll in, if it has the gauges; one that follows a gap, or lacks a counter, begins again."""
        point, last = window.points[-1], self._newest
        counters = {name: point.counters[name] for name in COUNTERS if name in point.counters}
        if last is not None and not _follows(last, point.t, counters):
            self.forget()
            last = None
        running, waiting = point.gauges.get("running"), point.gauges.get("waiting")
        if running is None or waiting is None or any(name not in counters for name in NEEDED):
            return
        if last is None:
            self._newest = _Reading(point.t, counters)
        else:
            elapsed = point.t - last.t
            self._newest = _Reading(
                point.t,
                counters,
                last.running_seconds + elapsed * running,
                last.waiting_seconds + elapsed * waiting,
                last.busy_seconds + (elapsed if running else 0.0),
            )
        readings, intervals = self._readings, self._intervals
        if not readings or point.t - readings[-1].t >= SPACING_SECONDS:
            intervals.extend([_interval(readings[-1], self._newest)] if readings else ())
            readings.append(self._newest)
        while len(readings) > 1 and readings[1].t <= point.t - SECONDS:
            readings.popleft()
        while len(intervals) >= len(readings):
            intervals.popleft()

    def minutes(self) -> Minutes | None:
        """Return the means; None of less than a minute, and without a lookup or a generated token."""
        if self._newest is None or self._newest.t - self._readings[0].t < LEAST_SECONDS:
            return None
        first, last = self._readings[0], self._newest
        seconds = last.t - first.t
        generated, queries, hits = (last.counters[name] - first.counters[name] for name in NEEDED)
        if queries <= 0 or generated <= 0:
            return None
        return Minutes(
            seconds=seconds,
            running=(last.running_seconds - first.running_seconds) / seconds,
            waiting=(last.waiting_seconds - first.waiting_seconds) / seconds,
            tokens_per_second=generated / seconds,
            hit_ratio=min(1.0, max(0.0, hits / queries)),
            intervals=tuple(self._intervals),
        )


class PoolMeans:
    """Hits of larger pools over `SECONDS`, as means of windows; bounded in readings."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, Mapping[float, float]]] = deque()

    def take(self, t: float, hits: Mapping[float, float]) -> None:
        """Take in the hits by pool of the window that ends at `t`; without any it begins again."""
        readings = self._readings
        if not hits or (readings and not 0 <= t - readings[-1][0] <= LONGEST_GAP_SECONDS):
            readings.clear()
        if hits and (not readings or t - readings[-1][0] >= SPACING_SECONDS):
            readings.append((t, hits))
        while readings and readings[0][0] <= t - SECONDS:
            readings.popleft()

    def hits(self) -> tuple[PoolHits, ...]:
        """Return the means of the pools that every window has, the smallest first."""
        known = [hits for _, hits in self._readings]
        pools = sorted(set.intersection(*map(set, known))) if known else ()
        return tuple(PoolHits(pool, sum(hits[pool] for hits in known) / len(known)) for pool in pools)


def _follows(last: _Reading, t: float, counters: Mapping[str, float]) -> bool:
    fell = [name for name, value in last.counters.items() if name not in counters or counters[name] < value]
    return 0 < t - last.t <= LONGEST_GAP_SECONDS and not fell


def _interval(before: _Reading, after: _Reading) -> Interval:
    def grew(name: str) -> float | None:
        return after.counters[name] - before.counters[name] if name in before.counters else None

    seconds = after.t - before.t
    return Interval(
        seconds=after.busy_seconds - before.busy_seconds,
        running=(after.running_seconds - before.running_seconds) / seconds,
        waiting=(after.waiting_seconds - before.waiting_seconds) / seconds,
        **{name: grew(counter) for name, counter in COUNTED.items()},
    )
