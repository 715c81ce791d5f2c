"""Plans of pages: at which positions of a page's values the signals of each engine are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

from kvpressure.model.record import record
from kvpressure.model.samples import CacheConfig, EnginePage, EngineSample, HistogramSample
from kvpressure.runtimes.table import LARGEST_VALUE, Row

_Take = Callable[[list[float]], tuple[float, ...]]
Parts = tuple[tuple[int, ...], ...]
Chosen = Sequence[tuple[Row, Parts]]
"""Rows of the table that the page has, and the positions of the values of each of their parts."""

_MERGES: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {"sum": sum, "max": max}


def _taker(slots: Sequence[int]) -> _Take:
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda values: tuple(values[slot] for slot in slots)


class Scalars:
    """The gauges, or the counters, of one engine."""

    def __init__(self, chosen: Chosen) -> None:
        plain = [(row.signal, parts[0][0]) for row, parts in chosen if sum(map(len, parts)) == 1]
        self._names = tuple(signal for signal, _ in plain)
        self._take = _taker([slot for _, slot in plain])
        several = [(row, parts) for row, parts in chosen if sum(map(len, parts)) > 1]
        self._merged = [(row.signal, tuple(map(_taker, parts)), _MERGES[row.merge]) for row, parts in several]
        self._most = [(row.signal, row.most) for row, _ in chosen if row.most < math.inf]

    def read(self, values: list[float]) -> dict[str, float]:
        """Return the signals with a valid value: NaN, negative and too large ones are left out."""
        signals = dict(zip(self._names, self._take(values), strict=True))
        for signal, parts, merge in self._merged:
            signals[signal] = sum(merge(take(values)) for take in parts)
        # Where no value is negative, a sum within the bound proves that each is; with a NaN the sum is not.
        if not sum(signals.values()) <= LARGEST_VALUE or min(signals.values(), default=0.0) < 0:
            signals = {signal: value for signal, value in signals.items() if 0 <= value <= LARGEST_VALUE}
        for signal, most in self._most:
            if signals.get(signal, 0.0) > most:
                del signals[signal]
        return signals


class Histogram:
    """One histogram of one engine, summed over the series that differ in other labels than `le`."""

    def __init__(self, signal: str, bounds: tuple[float, ...], parts: Sequence[tuple[Sequence[int], int]]) -> None:
        self.signal = signal
        self._bounds = bounds
        self._counts = [_taker(slots) for slots, _ in parts]
        self._sums = [slot for _, slot in parts]
        self._last: HistogramSample | None = None

    def read(self, values: list[float]) -> HistogramSample | None:
        """Return the histogram, None unless its counts and sum are valid and the counts never fall."""
        if len(self._counts) == 1:
            counts, total = self._counts[0](values), values[self._sums[0]]
        else:
            counts = tuple(map(sum, zip(*(take(values) for take in self._counts), strict=True)))
            total = sum(values[slot] for slot in self._sums)
        if self._last is not None and counts == self._last.counts and total == self._last.sum:
            return self._last
        # A NaN or infinity makes the sum not finite; sorting compares neighbours fast.
        in_range = math.isfinite(sum(counts)) and counts[-1] <= LARGEST_VALUE and 0 <= total <= LARGEST_VALUE
        valid = in_range and counts[0] >= 0 and sorted(counts) == list(counts)
        self._last = HistogramSample(self._bounds, counts, total) if valid else None
        return self._last


class Sizes:
    """The cache configuration of an engine: gauges, on top of `labels`, the configuration in a series' labels."""

    def __init__(self, gauges: Scalars, labels: CacheConfig) -> None:
        self._gauges = gauges
        self._labels = labels
        self._found: dict[str, float] = {}
        self._cache = labels

    def read(self, values: list[float]) -> CacheConfig:
        """Return the configuration, the same object while the values are the same; a value below 1 is unknown."""
        sizes = self._gauges.read(values)
        if sizes != self._found:
            self._found = sizes
            counts: dict[str, Any] = {name: int(value) for name, value in sizes.items() if value >= 1}
            if (blocks := counts.pop("capacity_blocks", None)) is not None and "block_size" in counts:
                counts["capacity_tokens"] = blocks * counts["block_size"]
            self._cache = replace(self._labels, **counts)
        return self._cache


@record
class EnginePlan:
    """How to read one engine of a page."""

    model_name: str
    engine: str
    gauges: Scalars
    counters: Scalars
    histograms: tuple[Histogram, ...]
    cache: CacheConfig | None
    sizes: Sizes | None = None
    complete: Callable[[dict[str, float]], dict[str, float]] | None = None
    role: str = ""
    worker: str = ""

    def read(self, values: list[float]) -> EngineSample:
        """Return the engine's signals; `cache` is the same object while its values are the same."""
        read = [(histogram.signal, histogram.read(values)) for histogram in self.histograms]
        histograms = {signal: sample for signal, sample in read if sample is not None}
        gauges, counters = self.gauges.read(values), self.counters.read(values)
        if self.complete is not None:
            gauges = self.complete(gauges)
        cache = self.cache if self.sizes is None else self.sizes.read(values)
        return EngineSample(self.model_name, self.engine, gauges, counters, histograms, cache, self.role, self.worker)


@record
class Plan:
    """How to read the pages with one set of series."""

    engines: tuple[EnginePlan, ...]
    started: int | None
    relayed: bool
    runtime: str = ""

    def read(self, values: list[float], t: float) -> EnginePage:
        """Return the page at time `t` (unix seconds); `values` are those of the plan's series, in order."""
        started = math.nan if self.started is None else values[self.started]
        engines = tuple(engine.read(values) for engine in self.engines)
        multiprocess = self.started is None and not self.relayed
        start_time = started if 0 < started < math.inf else None
        return EnginePage(t, engines, start_time, multiprocess=multiprocess, runtime=self.runtime)
