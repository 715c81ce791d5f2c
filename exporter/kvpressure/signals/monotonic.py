"""PURE: cumulative values that never fall, out of counters that fall when a server restarts."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping

from kvpressure.model.samples import EngineSample, HistogramSample


class Monotonic:
    """Turns cumulative values that fall when a server restarts into values that never fall."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._carry: dict[str, float] = {}
        self._last_histograms: dict[str, HistogramSample] = {}
        self._carry_histograms: dict[str, HistogramSample] = {}

    def restart(self) -> None:
        """Start every cumulative value again from zero: the server says that its process is a new one."""
        for name, value in self._last.items():
            self._carry[name] = self._carry.get(name, 0.0) + value
        for name, histogram in self._last_histograms.items():
            self._carry_histograms[name] = _added(histogram, self._carry_histograms.get(name))
        self._last.clear()
        self._last_histograms.clear()

    def join(self, sample: EngineSample) -> None:
        """Go on from `sample` without any growth: it is of a process that has counted for a while, unseen."""
        for name, value in sample.counters.items():
            if name in self._last:
                self._carry[name] = self._carry.get(name, 0.0) + self._last[name] - value
                self._last[name] = value
        for name, histogram in sample.histograms.items():
            before = self._last_histograms.get(name)
            if before is not None and before.bounds == histogram.bounds:
                self._carry_histograms[name] = _added(_less(before, histogram), self._carry_histograms.get(name))
                self._last_histograms[name] = histogram

    def fell(self, values: Mapping[str, float]) -> bool:
        """Whether a counter is lower than it was: another process counts."""
        return bool(self._fallen(values))

    def _fallen(self, values: Mapping[str, float]) -> list[str]:
        last = self._last
        return [name for name, value in values.items() if name in last and value < last[name]]

    def counters(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """Return `values` plus what was counted before each one's last fall."""
        carry = self._carry
        for name in self._fallen(values):
            carry[name] = carry.get(name, 0.0) + self._last[name]
        self._last |= values
        if not carry:
            return values
        return {name: value + carry.get(name, 0.0) for name, value in values.items()}

    def histograms(self, values: Mapping[str, HistogramSample]) -> Mapping[str, HistogramSample]:
        """Return the same for histograms; a change of bounds forgets the carry, since the two cannot be added."""
        for name, value in values.items():
            before = self._last_histograms.get(name)
            if before is not None and before.bounds != value.bounds:
                self._carry_histograms.pop(name, None)
            elif before is not None and value.counts[-1] < before.counts[-1]:
                self._carry_histograms[name] = _added(before, self._carry_histograms.get(name))
            self._last_histograms[name] = value
        if not self._carry_histograms:
            return values
        return {name: _added(value, self._carry_histograms.get(name)) for name, value in values.items()}


def _added(histogram: HistogramSample, other: HistogramSample | None) -> HistogramSample:
    if other is None or other.bounds != histogram.bounds:
        return histogram
    # What was joined to may be no growth of what was before it, bucket by bucket: it is still to be a histogram.
    counts = tuple(itertools.accumulate(map(operator.add, histogram.counts, other.counts), max))
    return HistogramSample(histogram.bounds, counts, max(0.0, histogram.sum + other.sum))


def _less(histogram: HistogramSample, other: HistogramSample) -> HistogramSample:
    counts = tuple(a - b for a, b in zip(histogram.counts, other.counts, strict=True))
    return HistogramSample(histogram.bounds, counts, histogram.sum - other.sum)
