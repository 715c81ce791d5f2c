"""From the values of a page to its `EnginePage`: decided once for a set of series, carried out on every poll."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

from kvpressure.model.record import record
from kvpressure.model.samples import CacheConfig, EnginePage, EngineSample, HistogramSample
from kvpressure.runtimes.table import Row

LARGEST_VALUE: Final = float(2**53)
"""Beyond, a float cannot count by one any more, and products of a few values would not be finite."""

_Take = Callable[[list[float]], tuple[float, ...]]
_MERGES: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {"sum": sum, "max": max}


def _taker(slots: Sequence[int]) -> _Take:
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda values: tuple(values[slot] for slot in slots)


class Scalars:
    """The gauges, or the counters, of one engine."""

    def __init__(self, chosen: Sequence[tuple[Row, tuple[int, ...]]]) -> None:
        plain = [(row.signal, slots[0]) for row, slots in chosen if len(slots) == 1]
        self._names = tuple(signal for signal, _ in plain)
        self._take = _taker([slot for _, slot in plain])
        self._merged = [(row.signal, _taker(slots), _MERGES[row.merge]) for row, slots in chosen if len(slots) > 1]
        self._most = [(row.signal, row.most) for row, _ in chosen if row.most < math.inf]

    def read(self, values: list[float]) -> dict[str, float]:
        """Return the signals that have a value: NaN, negative and too high ones are left out."""
        found = dict(zip(self._names, self._take(values), strict=True))
        for signal, take, merge in self._merged:
            found[signal] = merge(take(values))
        # None is negative, so a sum below the bound says that each is; NaN makes a sum that is not.
        if not sum(found.values()) <= LARGEST_VALUE or min(found.values(), default=0.0) < 0:
            found = {signal: value for signal, value in found.items() if 0 <= value <= LARGEST_VALUE}
        for signal, most in self._most:
            if found.get(signal, 0.0) > most:
                del found[signal]
        return found


class Histogram:
    """One histogram of one engine, summed over the series that differ in other labels than `le`."""

    def __init__(self, signal: str, bounds: tuple[float, ...], parts: Sequence[tuple[Sequence[int], int]]) -> None:
        self.signal = signal
        self._bounds = bounds
        self._counts = [_taker(slots) for slots, _ in parts]
        self._sums = [slot for _, slot in parts]
        self._last: HistogramSample | None = None

    def read(self, values: list[float]) -> HistogramSample | None:
        """Return the histogram, or None if it is none: counts and sum must be possible, counts never fall."""
        if len(self._counts) == 1:
            counts, total = self._counts[0](values), values[self._sums[0]]
        else:
            counts = tuple(map(sum, zip(*(take(values) for take in self._counts), strict=True)))
            total = sum(values[slot] for slot in self._sums)
        if self._last is not None and counts == self._last.counts and total == self._last.sum:
            return self._last
        # One NaN or infinity anywhere makes the sum no finite number, and sorting is how C compares neighbours.
        possible = math.isfinite(sum(counts)) and counts[-1] <= LARGEST_VALUE and 0 <= total <= LARGEST_VALUE
        sound = possible and counts[0] >= 0 and sorted(counts) == list(counts)
        self._last = HistogramSample(self._bounds, counts, total) if sound else None
        return self._last


class Sizes:
    """What an engine says of its cache in values, on top of what it `said` in labels."""

    def __init__(self, gauges: Scalars, said: CacheConfig) -> None:
        self._gauges = gauges
        self._said = said
        self._found: dict[str, float] = {}
        self._cache = said

    def read(self, values: list[float]) -> CacheConfig:
        """Return the configuration: the same object while the values are the same; what is not above 0 says nothing."""
        found = self._gauges.read(values)
        if found != self._found:
            self._found = found
            counts: dict[str, Any] = {name: int(value) for name, value in found.items() if value >= 1}
            self._cache = replace(self._said, **counts)
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

    def read(self, values: list[float]) -> EngineSample:
        """Return the engine's signals; `cache` is the same object on every page of this plan that says the same."""
        read = [(histogram.signal, histogram.read(values)) for histogram in self.histograms]
        histograms = {signal: sample for signal, sample in read if sample is not None}
        gauges, counters = self.gauges.read(values), self.counters.read(values)
        cache = self.cache if self.sizes is None else self.sizes.read(values)
        return EngineSample(self.model_name, self.engine, gauges, counters, histograms, cache)


@record
class Plan:
    """How to read the pages that have one certain set of series."""

    engines: tuple[EnginePlan, ...]
    started: int | None
    relayed: bool
    runtime: str = ""

    def read(self, values: list[float], t: float) -> EnginePage:
        """Return the page at time `t` (unix seconds); `values` belong to the series that the plan was made from."""
        started = None if self.started is None else values[self.started]
        started = started if started is not None and 0 < started < math.inf else None
        engines = tuple(engine.read(values) for engine in self.engines)
        multiprocess = self.started is None and not self.relayed
        return EnginePage(t, engines, started, multiprocess=multiprocess, runtime=self.runtime)
