"""Generated tokens per second of an engine at each demand, learned while it is healthy."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from kvpressure.config.thresholds import Thresholds

PER_OCTAVE: Final = 2
"""Bins of demand from one power of two to the next."""

BIN_MIN_SECONDS: Final = 10.0
"""Of less time, a bin tells chance."""


@dataclass(slots=True)
class _Bin:
    seconds: float = 0.0
    demand: float = 0.0
    rate: float = 0.0


class HealthyRate:
    """Mean tokens per second in bins of demand (requests running and waiting); older times count for less.

    Beyond the highest demand that was seen healthy, the most it did counts: so what is missing against it is a lower
    bound there.
    """

    def __init__(self) -> None:
        self._bins: dict[int, _Bin] = {}
        self._points: list[tuple[float, float]] | None = None

    def learn(self, demand: float, tokens_per_second: float, seconds: float, thresholds: Thresholds) -> None:
        """Let `seconds` of a healthy time count."""
        if demand <= 0 or seconds <= 0:
            return
        one = self._bins.setdefault(round(PER_OCTAVE * math.log2(demand)), _Bin())
        one.seconds += seconds
        weight = seconds / min(one.seconds, thresholds.baseline_half_life_seconds / math.log(2))
        one.demand += (demand - one.demand) * weight
        one.rate += (tokens_per_second - one.rate) * weight
        self._points = None

    def at(self, demand: float, thresholds: Thresholds) -> float | None:
        """Tokens per second at this demand; None as long as too little was seen, and where none are ever generated."""
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
            found = [one for one in self._bins.values() if one.seconds >= BIN_MIN_SECONDS]
            enough = sum(one.seconds for one in found) >= thresholds.baseline_min_seconds
            self._points = sorted((one.demand, one.rate) for one in found) if enough else []
            if not any(rate > 0 for _, rate in self._points):
                self._points = []
        return self._points
