"""Makes the plan of a page: which of its series are which signal of which engine."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from kvpressure.engines.plan import Chosen, EnginePlan, Histogram, Parts, Plan, Scalars, Sizes
from kvpressure.model.environment import ROLE_CODES
from kvpressure.model.record import record
from kvpressure.model.samples import CacheConfig
from kvpressure.promtext.lines import LargePageError, Series
from kvpressure.runtimes.gateways import worker_of
from kvpressure.runtimes.table import LARGEST_VALUE, STARTED, PageFacts, Row, Table

MAX_ENGINES: Final = 256
"""Ranks behind one server: more than any real server has, few enough that a hostile page is read fast."""

_LEAST_NAMES: Final = 4
"""Of metrics on a page, to conclude anything from a label that all have: fewer may have it for what they count."""

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

    A page on which no series has the table's engine label has one engine, "0". On other pages a series without the
    label is the server's: it is assigned to the engine if the model has only one, and to none otherwise, since its
    share of each engine is unknown.

    A page may be of several servers whose engines have the same names: Ray's agent has those of all replicas on a node,
    and a proxy those of all that it collects from. Then a label that every series has tells them apart.
    """

    def __init__(self, by_name: Mapping[str, Sequence[_Found]], table: Table) -> None:
        info, self._label = table.info, table.engine_label
        self.names = frozenset(by_name)
        self.labelled = any(self._label in line.labels for series in by_name.values() for line in series)
        self.infos = by_name.get(info, ())
        self._series: defaultdict[tuple[str, _Engine], list[_Found]] = defaultdict(list)
        named: defaultdict[_Engine, list[tuple[str, _Found]]] = defaultdict(list)
        for name in self.names - {info}:
            for line in by_name[name]:
                model = line.labels.get(table.model_label) or line.labels.get(table.other_model_label, "")
                named[model, self.engine(line)].append((name, line))
        self._servers: dict[_Engine, tuple[str, str, str]] = {}
        for (model, rank), series in named.items():
            label = "" if rank == _SERVER else _server_label(series, table)
            for name, line in series:
                engine = (model, f"{rank}@{line.labels[label]}") if label else (model, rank)
                self._series[name, engine].append(line)
                if label:
                    self._servers[engine] = rank, label, line.labels[label]
        self.engines = sorted({engine for _, engine in self._series if engine[1] != _SERVER})
        labelled = ((engine, line.labels) for (_, engine), series in self._series.items() for line in series)
        said = ((engine, labels.get(table.role_label, "")) for engine, labels in labelled)
        self.roles = {engine: role for engine, role in said if role in ROLE_CODES}
        if len(self.engines) > MAX_ENGINES:
            raise LargePageError(f"the page has {len(self.engines)} engines, more than {MAX_ENGINES}")
        self._engines_of = Counter(model for model, _ in self.engines)

    def engine(self, line: _Found) -> str:
        """Return the rank of a series."""
        return line.labels.get(self._label, _SERVER if self.labelled else _SOLE)

    def infos_of(self, engine: _Engine) -> list[_Found]:
        """Return the series that describe the engine's cache, whatever its model: they do not name one."""
        rank, label, value = self._servers.get(engine, (engine[1], "", ""))
        return [info for info in self.infos if self.engine(info) == rank and info.labels.get(label, value) == value]

    def series(self, name: str, engine: _Engine) -> list[_Found]:
        """Return the engine's series of `name`."""
        own = self._series.get((name, engine), [])
        if own or self._engines_of[engine[0]] != 1:
            return own
        return self._series.get((name, (engine[0], _SERVER)), [])


def _server_label(series: Sequence[tuple[str, _Found]], table: Table) -> str:
    """Return the label that tells apart several servers whose engines have the same name, "" without one.

    All series have it, while a label of some metrics says what these count; and each value of it has a batch, while
    processes of one engine do not. Of several such labels, the one with the shortest values.
    """
    if len({name for name, _ in series}) < _LEAST_NAMES:
        return ""
    batches = {name for row in table.gauges if row.signal == "running" for name in row.names}
    heads = [line.labels for name, line in series if name in batches] or [line.labels for _, line in series]
    common = set[str].intersection(*(set(line.labels) for _, line in series)) - table.within_engine
    values = {label: frozenset(line.labels[label] for _, line in series) for label in common}
    fitting = [
        label for label, label_values in values.items() if label_values == {labels[label] for labels in heads} - {""}
    ]
    most = max((len(values[label]) for label in fitting), default=1)
    finest = [label for label in fitting if len(values[label]) == most > 1]
    return min(finest, key=lambda label: (max(map(len, values[label])), label), default="")


def make_plan(table: Table, series: Sequence[Series]) -> Plan | None:
    """Return the plan for a page with these series, None if the table has none of their names.

    Of series with the same name and labels the last one counts. Raises LargePageError.
    """
    slots = {sample: slot for slot, sample in enumerate(series)}
    spellings = {name: _spelling(table, name) for name in {sample.name for sample in slots}}
    spelled = Counter(spelling for sample in slots if (spelling := spellings[sample.name]) is not None)
    if not spelled:
        return None
    spelling = spelled.most_common(1)[0][0]
    own = {
        name: table.prefix + name.removeprefix(spelling)
        for name, own_spelling in spellings.items()
        if own_spelling == spelling
    }
    # What is of the whole server may lack the labels that its engines have, and is none of them.
    of_server = {name for row in (*table.server_gauges, *table.server_counters) for name in row.names}
    index = _Index(_named(slots, {name: of for name, of in own.items() if of not in of_server}), table)
    facts = PageFacts(len({index.engine(sample) for sample in index.infos}), index.labelled, index.names)
    server = [_of_server(rows, slots, own) for rows in (table.server_gauges, table.server_counters)]
    worker = worker_of(slots)
    engines = tuple(_engine_plan(table, index, engine, facts, server, worker) for engine in index.engines)
    return Plan(engines, slots.get(Series(STARTED, ())), spelling in table.relayed, table.runtime)


def recognised(table: Table, series: Sequence[Series]) -> int:
    """Return the number of series that the table names."""
    return sum(_spelling(table, sample.name) is not None for sample in series)


def _spelling(table: Table, name: str) -> str | None:
    return None if name in table.foreign_names() else next((s for s in table.spellings if name.startswith(s)), None)


def _named(slots: Mapping[Series, int], own: Mapping[str, str]) -> dict[str, list[_Found]]:
    """Return the series whose names are in `own`, by the table's name for each."""
    by_name: defaultdict[str, list[_Found]] = defaultdict(list)
    for (name, labels), slot in slots.items():
        if name in own:
            by_name[own[name]].append(_Found(slot, dict(labels)))
    return dict(by_name)


def _of_server(rows: Sequence[Row], slots: Mapping[Series, int], own: Mapping[str, str]) -> Chosen:
    names = {name for row in rows for name in row.names}
    by_name = _named(slots, {name: own.get(name, name) for name in (*names, *own) if own.get(name, name) in names})
    chosen: dict[str, tuple[Row, Parts]] = {}
    for row in rows:
        picked = _picked(row, [line for name in row.names for line in by_name.get(name, ())])
        if picked and row.signal not in chosen:
            chosen[row.signal] = row, picked
    return list(chosen.values())


def _engine_plan(
    table: Table, index: _Index, engine: _Engine, facts: PageFacts, server: Sequence[Chosen], worker: str
) -> EnginePlan:
    configs = {table.info_cache(info.labels, facts) for info in index.infos_of(engine)}
    # Several processes may describe one engine; if they contradict each other, its configuration is unknown.
    described = configs.pop() if len(configs) == 1 else None
    known = replace(described or CacheConfig(), admission=table.admission)
    sizes = _chosen(table.cache, index, engine)
    gauges, counters = server
    histograms = (_histogram(row, index, engine) for row in table.histograms)
    return EnginePlan(
        model_name=engine[0],
        engine=engine[1],
        gauges=Scalars([*_chosen(table.gauges, index, engine), *gauges]),
        counters=Scalars([*_chosen(table.counters, index, engine), *counters]),
        histograms=tuple(histogram for histogram in histograms if histogram is not None),
        cache=known if described or table.admission != "prompt" else None,
        sizes=Sizes(Scalars(sizes), known) if sizes else None,
        complete=table.complete,
        role=index.roles.get(engine, ""),
        worker=worker,
    )


def _chosen(rows: Sequence[Row], index: _Index, engine: _Engine) -> Chosen:
    """Return each signal's first row that the page has, with the positions of its values."""
    chosen: dict[str, tuple[Row, Parts]] = {}
    for row in rows:
        picked = (_picked(row, index.series(name, engine)) for name in row.names)
        if row.signal not in chosen and (parts := next(filter(None, picked), ())):
            chosen[row.signal] = row, parts
    return list(chosen.values())


def _picked(row: Row, lines: Iterable[_Found]) -> Parts:
    parts: defaultdict[str, list[int]] = defaultdict(list)
    for line in lines:
        if all(fnmatchcase(line.labels.get(label, ""), pattern) for label, pattern in row.where):
            parts[line.labels.get(row.parts, "")].append(line.slot)
    return tuple(map(tuple, parts.values()))


def _histogram(row: Row, index: _Index, engine: _Engine) -> Histogram | None:
    """Return the histogram of a row, None unless all its series are complete and have the same bounds."""
    stem = next((name for name in row.names if index.series(f"{name}_bucket", engine)), None)
    if stem is None:
        return None
    buckets: defaultdict[frozenset[tuple[str, str]], dict[float, int]] = defaultdict(dict)
    for line in index.series(f"{stem}_bucket", engine):
        buckets[_rest(line)][_bound(line)] = line.slot
    sums = {_rest(line): line.slot for line in index.series(f"{stem}_sum", engine)}
    counts = {_rest(line) for line in index.series(f"{stem}_count", engine)}
    bounds = {tuple(sorted(slots)) for slots in buckets.values()}
    if len(bounds) != 1 or not buckets.keys() == sums.keys() == counts:
        return None
    (shared,) = bounds
    if shared[-1] != math.inf or not all(abs(bound) <= LARGEST_VALUE for bound in shared[:-1]):
        return None
    parts = [([slots[bound] for bound in shared], sums[rest]) for rest, slots in buckets.items()]
    return Histogram(row.signal, shared, parts)


def _rest(line: _Found) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in line.labels.items() if name != "le")


def _bound(line: _Found) -> float:
    try:
        return float(line.labels["le"])
    except (KeyError, ValueError):
        return math.nan
