"""PURE: what histograms observed over a span of time, out of a bounded number of their cumulative readings."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping

from kvpressure.model.samples import HistogramSample


class SpacedHistograms:
    """The cumulative histograms of one engine over the last `seconds`, at most `count` readings of them."""

    def __init__(self, seconds: float, spacing: float, count: int) -> None:
        self._seconds, self._spacing = seconds, spacing
        self._readings: deque[tuple[float, Mapping[str, HistogramSample]]] = deque(maxlen=count)

    def add(self, t: float, histograms: Mapping[str, HistogramSample]) -> None:
        """Take one reading in; it replaces the last while that is close to the one before, so both ends stay exact."""
        readings = self._readings
        if len(readings) >= 2 and readings[-1][0] - readings[-2][0] < self._spacing * 0.999:
            readings.pop()
        readings.append((t, histograms))
        # The newest reading before the span stays: growth within the span is counted from it.
        while len(readings) > 1 and readings[1][0] <= t - self._seconds:
            readings.popleft()

    @property
    def newest(self) -> Mapping[str, HistogramSample]:
        """The newest reading; empty before the first."""
        return self._readings[-1][1] if self._readings else {}

    def place(self, since: float) -> int:
        """Return the place of the newest reading that is not after `since`, 0 if all are."""
        return max(0, sum(t <= since for t, _ in self._readings) - 1)

    def growth(self, name: str, first: int = 0) -> HistogramSample | None:
        """Return what a histogram observed since the reading at the place `first`; None when nothing, or not known."""
        last = self.newest.get(name)
        if last is None:
            return None
        readings = (values.get(name) for _, values in itertools.islice(self._readings, first, None))
        before = next(found for found in readings if found is not None and found.bounds == last.bounds)
        if last.count <= before.count:
            return None
        counts = tuple(max(0.0, a - b) for a, b in zip(last.counts, before.counts, strict=True))
        return HistogramSample(last.bounds, counts, max(0.0, last.sum - before.sum))
