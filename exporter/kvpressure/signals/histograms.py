"""PURE: what histograms observed over a span of time, out of a bounded number of their cumulative readings."""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Mapping

from kvpressure.model.samples import HistogramSample


class SpacedHistograms:
    """The cumulative histograms of one engine over the last `seconds`, at most `count` readings of them."""

    def __init__(self, seconds: float, spacing: float, count: int) -> None:
        self._seconds, self._spacing = seconds, spacing
        self._readings: deque[tuple[float, Mapping[str, HistogramSample]]] = deque(maxlen=count)
        self.newest: Mapping[str, HistogramSample] = {}
        """The newest reading; empty before the first."""
        self._growth: dict[tuple[str, int], HistogramSample | None] = {}
        """What was asked for since the newest reading came."""

    def add(self, t: float, histograms: Mapping[str, HistogramSample]) -> None:
        """Take one reading in; it replaces the last while that is close to the one before, so both ends stay exact."""
        readings = self._readings
        self.newest = histograms
        self._growth = {}
        if len(readings) >= 2 and readings[-1][0] - readings[-2][0] < self._spacing * 0.999:
            readings.pop()
        readings.append((t, histograms))
        # The newest reading before the span stays: growth within the span is counted from it.
        while len(readings) > 1 and readings[1][0] <= t - self._seconds:
            readings.popleft()

    def place(self, since: float) -> int:
        """Return the place of the newest reading that is not after `since`, 0 if all are."""
        place = -1
        for t, _ in self._readings:
            if t > since:
                break
            place += 1
        return max(0, place)

    def growth(self, name: str, first: int = 0) -> HistogramSample | None:
        """Return what a histogram observed since the reading at the place `first`; None when nothing, or not known."""
        question = name, first
        if question not in self._growth:
            self._growth[question] = self._grown(name, first)
        return self._growth[question]

    def _grown(self, name: str, first: int) -> HistogramSample | None:
        if name not in self.newest:
            return None
        last = before = self.newest[name]
        for _, values in itertools.islice(self._readings, first, None):
            if name in values and values[name].bounds == last.bounds:
                before = values[name]
                break
        if last.counts[-1] <= before.counts[-1]:
            return None
        counts = tuple(map(operator.sub, last.counts, before.counts))
        if min(counts) < 0.0:
            counts = tuple([max(0.0, count) for count in counts])
        return HistogramSample(last.bounds, counts, max(0.0, last.sum - before.sum))
