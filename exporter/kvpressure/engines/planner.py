"""Decides how to read a page: which of its series make up which signal of which engine."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

from kvpressure.model.environment import ROLE_CODES
from kvpressure.model.record import record
from kvpressure.model.samples import CacheConfig, EnginePage, EngineSample, HistogramSample
from kvpressure.promtext.lines import PageError, Series
from kvpressure.runtimes.gateways import worker_of
from kvpressure.runtimes.table import LARGEST_VALUE, STARTED, PageFacts, Row, Table

_Take = Callable[[list[float]], tuple[float, ...]]
_Parts = tuple[tuple[int, ...], ...]
_Chosen = Sequence[tuple[Row, _Parts]]
"""Rows of the table that the page has, and where the values of each part of their number are."""

_MERGES: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {"sum": sum, "max": max}


def _taker(slots: Sequence[int]) -> _Take:
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda values: tuple(values[slot] for slot in slots)


class Scalars:
    """The gauges, or the counters, of one engine."""

    def __init__(self, chosen: _Chosen) -> None:
        plain = [(row.signal, parts[0][0]) for row, parts in chosen if sum(map(len, parts)) == 1]
        self._names = tuple(signal for signal, _ in plain)
        self._take = _taker([slot for _, slot in plain])
        several = [(row, parts) for row, parts in chosen if sum(map(len, parts)) > 1]
        self._merged = [(row.signal, tuple(map(_taker, parts)), _MERGES[row.merge]) for row, parts in several]
        self._most = [(row.signal, row.most) for row, _ in chosen if row.most < math.inf]

    def read(self, values: list[float]) -> dict[str, float]:
        """Return the signals that have a value: NaN, negative and too high ones are left out."""
        found = dict(zip(self._names, self._take(values), strict=True))
        for signal, parts, merge in self._merged:
            found[signal] = sum(merge(take(values)) for take in parts)
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
            if (blocks := counts.pop("capacity_blocks", None)) is not None and "block_size" in counts:
                counts["capacity_tokens"] = blocks * counts["block_size"]
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
    complete: Callable[[dict[str, float]], dict[str, float]] | None = None
    role: str = ""
    worker: str = ""

    def read(self, values: list[float]) -> EngineSample:
        """Return the engine's signals; `cache` is the same object on every page of this plan that says the same."""
        read = [(histogram.signal, histogram.read(values)) for histogram in self.histograms]
        histograms = {signal: sample for signal, sample in read if sample is not None}
        gauges, counters = self.gauges.read(values), self.counters.read(values)
        if self.complete is not None:
            gauges = self.complete(gauges)
        cache = self.cache if self.sizes is None else self.sizes.read(values)
        names = (self.role, self.worker)
        return EngineSample(self.model_name, self.engine, gauges, counters, histograms, cache, *names)


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


MAX_ENGINES: Final = 256
"""Ranks behind one server: more than any real one has, few enough that a hostile page delays nobody."""

_Engine = tuple[str, str]
_SOLE: Final = "0"
_SERVER: Final = ""


@record
class _Found:
    """One series on the page: the position of its value, and its labels."""

    slot: int
    labels: Mapping[str, str]


class _Index:
    """The series of one page in one spelling, by name and engine.

    A page on which no series has the table's label of engines has one engine, "0". Elsewhere a series without it
    belongs to the whole server: it is the only engine's if the model has just one, and nobody's otherwise, for half of
    a server's rejections would be a made-up number.
    """

    def __init__(self, found: Mapping[str, Sequence[_Found]], table: Table) -> None:
        info, self._label = table.info, table.engine_label
        self.names = frozenset(found)
        self.labelled = any(self._label in one.labels for series in found.values() for one in series)
        self.infos = found.get(info, ())
        self._series: defaultdict[tuple[str, _Engine], list[_Found]] = defaultdict(list)
        for name in self.names - {info}:
            for one in found[name]:
                self._series[name, (_model(one, table), self.engine(one))].append(one)
        self.engines = sorted({engine for _, engine in self._series if engine[1] != _SERVER})
        labelled = ((engine, one.labels) for (_, engine), series in self._series.items() for one in series)
        said = ((engine, labels.get(table.role_label, "")) for engine, labels in labelled)
        self.roles = {engine: role for engine, role in said if role in ROLE_CODES}
        if len(self.engines) > MAX_ENGINES:
            raise PageError("too_large", f"the page has {len(self.engines)} engines, more than {MAX_ENGINES}")
        self._engines_of = Counter(model for model, _ in self.engines)

    def engine(self, found: _Found) -> str:
        """Return the engine of a series."""
        return found.labels.get(self._label, _SERVER if self.labelled else _SOLE)

    def series(self, name: str, engine: _Engine) -> list[_Found]:
        """Return the series of `name` that are the engine's."""
        own = self._series.get((name, engine), [])
        if own or self._engines_of[engine[0]] != 1:
            return own
        return self._series.get((name, (engine[0], _SERVER)), [])


def _model(found: _Found, table: Table) -> str:
    return found.labels.get(table.model_label) or found.labels.get(table.other_model_label, "")


def make_plan(table: Table, series: Sequence[Series]) -> Plan | None:
    """Return the plan for a page with these series; None if none of them is the table's.

    `series` may hold duplicates: of series with the same name and labels the last one counts. Raises PageError
    with reason "too_large".
    """
    slots = {one: slot for slot, one in enumerate(series)}
    spellings = {name: _spelling(table, name) for name in {one.name for one in slots}}
    spelled = Counter(spelling for one in slots if (spelling := spellings[one.name]) is not None)
    if not spelled:
        return None
    spelling = spelled.most_common(1)[0][0]
    own = {name: table.prefix + name.removeprefix(spelling) for name, its in spellings.items() if its == spelling}
    index = _Index(_named(slots, own), table)
    facts = PageFacts(len({index.engine(one) for one in index.infos}), index.labelled, index.names)
    server = _of_server(table, slots, own)
    worker = worker_of(slots)
    engines = tuple(
        replace(_engine_plan(table, index, engine, facts, server), worker=worker) for engine in index.engines
    )
    return Plan(engines, slots.get(Series(STARTED, ())), spelling in table.relayed, table.runtime)


def recognised(table: Table, series: Sequence[Series]) -> int:
    """How many of the series are the table's."""
    return sum(_spelling(table, one.name) is not None for one in series)


def _spelling(table: Table, name: str) -> str | None:
    return None if name in table.foreign_names() else next((s for s in table.spellings if name.startswith(s)), None)


def _named(slots: Mapping[Series, int], own: Mapping[str, str]) -> dict[str, list[_Found]]:
    """Return the series whose names are in `own`, by the table's own name for each."""
    found: defaultdict[str, list[_Found]] = defaultdict(list)
    for (name, labels), slot in slots.items():
        if name in own:
            found[own[name]].append(_Found(slot, dict(labels)))
    return dict(found)


def _of_server(table: Table, slots: Mapping[Series, int], own: Mapping[str, str]) -> _Chosen:
    wanted = {name for row in table.server_gauges for name in row.names}
    known = {name: own.get(name, name) for name in (*wanted, *own) if own.get(name, name) in wanted}
    found = _named(slots, known)
    chosen = [
        (row, _picked(row, [one for name in row.names for one in found.get(name, ())])) for row in table.server_gauges
    ]
    return [(row, picked) for row, picked in chosen if picked]


def _engine_plan(table: Table, index: _Index, engine: _Engine, facts: PageFacts, server: _Chosen) -> EnginePlan:
    configs = {table.info_cache(one.labels, facts) for one in index.infos if index.engine(one) == engine[1]}
    # Several processes may describe one engine; if they contradict each other, none of them is believed.
    said = configs.pop() if len(configs) == 1 else None
    known = replace(said or CacheConfig(), admission=table.admission)
    sizes = _chosen(table.cache, index, engine)
    histograms = (_histogram(row, index, engine) for row in table.histograms)
    return EnginePlan(
        model_name=engine[0],
        engine=engine[1],
        gauges=Scalars([*_chosen(table.gauges, index, engine), *server]),
        counters=Scalars(_chosen(table.counters, index, engine)),
        histograms=tuple(histogram for histogram in histograms if histogram is not None),
        cache=known if said or table.admission != "prompt" else None,
        sizes=Sizes(Scalars(sizes), known) if sizes else None,
        complete=table.complete,
        role=index.roles.get(engine, ""),
    )


def _chosen(rows: Sequence[Row], index: _Index, engine: _Engine) -> _Chosen:
    """Each signal's first row that the page has, and where its values are."""
    found: dict[str, tuple[Row, _Parts]] = {}
    for row in rows:
        picked = (_picked(row, index.series(name, engine)) for name in row.names)
        if row.signal not in found and (parts := next(filter(None, picked), ())):
            found[row.signal] = row, parts
    return list(found.values())


def _picked(row: Row, found: Iterable[_Found]) -> _Parts:
    parts: defaultdict[str, list[int]] = defaultdict(list)
    for one in found:
        if all(_is(one.labels.get(label, ""), wanted) for label, wanted in row.where):
            parts[one.labels.get(row.parts, "")].append(one.slot)
    return tuple(map(tuple, parts.values()))


def _is(value: str, wanted: str) -> bool:
    return value.startswith(wanted[:-1]) if wanted.endswith("*") else value == wanted


def _histogram(row: Row, index: _Index, engine: _Engine) -> Histogram | None:
    """Return the histogram of a row, or None unless all its series are complete and have the same bounds."""
    stem = next((name for name in row.names if index.series(f"{name}_bucket", engine)), None)
    if stem is None:
        return None
    buckets: defaultdict[frozenset[tuple[str, str]], dict[float, int]] = defaultdict(dict)
    for one in index.series(f"{stem}_bucket", engine):
        buckets[_rest(one)][_bound(one)] = one.slot
    sums = {_rest(one): one.slot for one in index.series(f"{stem}_sum", engine)}
    counts = {_rest(one) for one in index.series(f"{stem}_count", engine)}
    bounds = {tuple(sorted(slots)) for slots in buckets.values()}
    if len(bounds) != 1 or not buckets.keys() == sums.keys() == counts:
        return None
    (shared,) = bounds
    if shared[-1] != math.inf or not all(abs(bound) <= LARGEST_VALUE for bound in shared[:-1]):
        return None
    parts = [([slots[bound] for bound in shared], sums[rest]) for rest, slots in buckets.items()]
    return Histogram(row.signal, shared, parts)


def _rest(found: _Found) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in found.labels.items() if name != "le")


def _bound(found: _Found) -> float:
    try:
        return float(found.labels["le"])
    except (KeyError, ValueError):
        return math.nan
