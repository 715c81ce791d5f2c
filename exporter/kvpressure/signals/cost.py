"""What trouble costs: tokens that an engine would have generated for the same demand, and did not."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.catalogue import those
from kvpressure.model.family import engine_family
from kvpressure.model.incident import Incident, Since
from kvpressure.model.values import Derived
from kvpressure.model.verdict import Cause
from kvpressure.model.view import LOSING
from kvpressure.signals.points import Point, grown, mean, stepped_back

LONGEST_INTERVAL_SECONDS: Final = 35.0
"""After a longer time between two pages that are polled every second, it is not known what happened in it."""

LEARNED_AFTER_FACTOR: Final = 2.0
"""A healthy time counts once the verdict stayed so for so many of its windows: no verdict names trouble later."""

LOST_TOKENS: Final = "lost_tokens_total"
_FOR_ROOM: Final = those(lambda row: row.for_room)
"""Waiting requests would be in the batch, and steps take what they take: that says what would be generated."""

FAMILIES: Final = (
    engine_family(
        "lost_tokens_total",
        "Estimated generated tokens lost while a bottleneck limited the engine, compared with its unconstrained "
        "throughput for the same demand. Absent until that is known from its step times or from a healthy period.",
    ),
)

PER_OCTAVE: Final = 2
"""Bins of demand from one power of two to the next."""

BIN_MIN_SECONDS: Final = 10.0
"""With less time, a bin is chance."""


@dataclass(slots=True)
class _Bin:
    seconds: float = 0.0
    demand: float = 0.0
    rate: float = 0.0


class HealthyRate:
    """Mean tokens per second in bins of demand (requests running and waiting); older times count for less.

    Beyond the highest healthy demand, the highest rate counts: what is missing against it is a lower bound there.
    """

    def __init__(self) -> None:
        self._bins: dict[int, _Bin] = {}
        self._points: list[tuple[float, float]] | None = None

    def learn(self, demand: float, tokens_per_second: float, seconds: float, thresholds: Thresholds) -> None:
        """Let `seconds` of a healthy time count."""
        if demand <= 0 or seconds <= 0:
            return
        level = self._bins.setdefault(round(PER_OCTAVE * math.log2(demand)), _Bin())
        level.seconds += seconds
        weight = seconds / min(level.seconds, thresholds.baseline.half_life_seconds / math.log(2))
        level.demand += (demand - level.demand) * weight
        level.rate += (tokens_per_second - level.rate) * weight
        self._points = None

    def at(self, demand: float, thresholds: Thresholds) -> float | None:
        """Return tokens per second at this demand; None until enough healthy time is known, or where none are made."""
        points = self._known(thresholds)
        if not points:
            return None
        place = bisect_right(points, (demand, math.inf))
        if place == 0:
            first = points[0]
            return first[1] * demand / first[0]
        if place == len(points):
            return max(rate for _, rate in points)
        (low, before), (high, after) = points[place - 1], points[place]
        return before + (after - before) * (demand - low) / (high - low)

    def _known(self, thresholds: Thresholds) -> list[tuple[float, float]]:
        if self._points is None:
            known = [level for level in self._bins.values() if level.seconds >= BIN_MIN_SECONDS]
            enough = sum(level.seconds for level in known) >= thresholds.baseline.min_seconds
            self._points = sorted((level.demand, level.rate) for level in known) if enough else []
            if not any(rate > 0 for _, rate in self._points):
                self._points = []
        return self._points


class Recomputed(NamedTuple):
    """Prompt tokens that are computed again a second, and the share of the engine's time that this takes."""

    tokens: float
    seconds: float


class _Interval(NamedTuple):
    """Between two polls: unix seconds of the later one, seconds, requests running and waiting, tokens generated."""

    t: float
    seconds: float
    demand: float
    tokens: float


@dataclass(slots=True)
class _Sum:
    seconds: float = 0.0
    tokens: float = 0.0

    def add(self, interval: _Interval) -> None:
        self.seconds += interval.seconds
        self.tokens += interval.tokens

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass(slots=True)
class _Trouble:
    """`owed` may fall where an interval brings more than expected; `lost` is the most it was, which never falls."""

    began: float
    last: float
    total: _Sum = field(default_factory=_Sum)
    causes: dict[Cause, float] = field(default_factory=dict)
    """Seconds of each."""
    owed: float | None = None
    owed_seconds: float = 0.0
    lost: float = 0.0
    recomputed: Recomputed | None = None
    """The tokens, and the seconds that computing them took."""
    restarts: int = 0
    after: _Sum = field(default_factory=_Sum)


class Cost:
    """Of one engine: what was lost since it is watched, and its present or last incident.

    Of a time between two polls that is longer than `longest_interval_seconds` nothing is counted.
    A time counts as healthy only once the verdict has stayed so for a while after it: at the begin of an incident the
    verdict still is what it was.
    """

    def __init__(self, longest_interval_seconds: float = LONGEST_INTERVAL_SECONDS) -> None:
        self._longest_interval_seconds = longest_interval_seconds
        self._healthy = HealthyRate()
        self._pending: deque[_Interval] = deque()
        self._trouble: _Trouble | None = None
        self._t = float("-inf")
        self._lost: float | None = None

    def restarted(self) -> None:
        """Note that another process answers than before."""
        if self._trouble is not None:
            self._trouble.restarts += 1

    def update(
        self,
        points: Sequence[Point],
        cause: Cause,
        thresholds: Thresholds,
        unconstrained: float | None = None,
        recomputed: Recomputed | None = None,
    ) -> None:
        """Take in the newest of the polls and the verdict on it; nothing that was taken in before.

        `unconstrained` is how many tokens a second the present requests would get if the pool had room for all,
        `recomputed` what is computed again where contexts are evicted.
        """
        interval = _newest(points, self._longest_interval_seconds)
        if interval is not None and stepped_back(self._t, interval.t):
            self._t, self._trouble = float("-inf"), None
            self._pending.clear()
        if interval is None or interval.t <= self._t:
            return
        self._t = interval.t
        if cause is Cause.HEALTHY:
            self._learn(interval, thresholds)
        elif cause is not Cause.IDLE:
            self._pending.clear()
        if self._lost is None and self._healthy.at(1.0, thresholds) is not None:
            self._lost = 0.0
        if cause in LOSING:
            self._lose(interval, cause, self._expected(interval, cause, thresholds, unconstrained), thresholds)
            if recomputed is not None and self._trouble is not None:
                tokens, seconds = self._trouble.recomputed or (0.0, 0.0)
                self._trouble.recomputed = Recomputed(
                    tokens + recomputed.tokens * interval.seconds, seconds + recomputed.seconds * interval.seconds
                )
        elif self._trouble is not None and cause is not Cause.UNKNOWN:
            self._trouble.after.add(interval)

    def _learn(self, interval: _Interval, thresholds: Thresholds) -> None:
        self._pending.append(interval)
        least = LEARNED_AFTER_FACTOR * thresholds.verdict.verdict_window_seconds
        while self._pending and interval.t - self._pending[0].t >= least:
            old = self._pending.popleft()
            self._healthy.learn(old.demand, old.tokens / old.seconds, old.seconds, thresholds)

    def _expected(
        self, interval: _Interval, cause: Cause, thresholds: Thresholds, unconstrained: float | None
    ) -> float | None:
        """Return tokens a second but for the trouble; None where that is not known."""
        if cause in _FOR_ROOM:
            return unconstrained
        healthy = self._healthy.at(interval.demand, thresholds)
        if cause is not Cause.CONCURRENCY_BOUND or healthy is None or unconstrained is None:
            return healthy
        # Present requests may differ from those of the healthy time.
        return min(healthy, unconstrained)

    def _lose(self, interval: _Interval, cause: Cause, expected: float | None, thresholds: Thresholds) -> None:
        trouble = self._trouble
        if trouble is None or interval.t - trouble.last > thresholds.verdict.incident_gap_seconds:
            trouble = self._trouble = _Trouble(interval.t - interval.seconds, interval.t)
        trouble.last, trouble.after = interval.t, _Sum()
        trouble.total.add(interval)
        trouble.causes[cause] = trouble.causes.get(cause, 0.0) + interval.seconds
        if expected is None or expected <= 0:
            return
        self._lost = self._lost or 0.0
        trouble.owed = (trouble.owed or 0.0) + expected * interval.seconds - interval.tokens
        if trouble.owed > trouble.lost:
            self._lost += trouble.owed - trouble.lost
            trouble.owed_seconds += (trouble.owed - trouble.lost) / expected
            trouble.lost = trouble.owed

    def families(self) -> Derived:
        """Return `lost_tokens_total`; absent until it is known what the engine would do without trouble."""
        return {} if self._lost is None else {LOST_TOKENS: self._lost}

    def incident(self, thresholds: Thresholds) -> Incident | None:
        """Return the present one, or the last; None if there was none."""
        trouble = self._trouble
        if trouble is None:
            return None
        known, over = trouble.owed is not None, self._t - trouble.last > thresholds.verdict.incident_gap_seconds
        long = over and trouble.after.seconds >= thresholds.baseline.min_seconds
        return Incident(
            cause=max(trouble.causes, key=trouble.causes.__getitem__),
            began=trouble.began,
            seconds=trouble.last - trouble.began,
            tokens_per_second=trouble.total.rate,
            lost_tokens=trouble.lost if known else None,
            lost_seconds=trouble.owed_seconds if known else None,
            recomputed_tokens=None if trouble.recomputed is None else trouble.recomputed.tokens,
            recomputed_seconds=None if trouble.recomputed is None else trouble.recomputed.seconds,
            ended=trouble.last if over else None,
            restarts=trouble.restarts,
            since=Since(trouble.after.seconds, trouble.after.rate) if long else None,
        )


def _newest(points: Sequence[Point], longest_seconds: float) -> _Interval | None:
    """Return the time between the newest two polls; None where one lacks what is needed, or it is too long."""
    if len(points) < 2:
        return None
    before, after = points[-2], points[-1]
    seconds, tokens = after.t - before.t, grown(before, after, "generation_tokens")
    demands = [demand for demand in (_demand(before), _demand(after)) if demand is not None]
    if tokens is None or not demands or not 0 < seconds <= longest_seconds:
        return None
    return _Interval(after.t, seconds, mean(demands), tokens)


def _demand(point: Point) -> float | None:
    """Return the requests that run or wait at a poll; None where it lacks one of them."""
    gauges = point.gauges
    return gauges["running"] + gauges["waiting"] if "running" in gauges and "waiting" in gauges else None
