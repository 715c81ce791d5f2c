"""What a runtime's table of metrics is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from kvpressure.model.samples import CacheConfig

STARTED: Final = "process_start_time_seconds"


@dataclass(frozen=True, slots=True)
class Row:
    """One signal and the metrics that carry it.

    `names` are alternatives, best first: the first that an engine has is used alone, they are never added. `where`
    are labels that must have the given value, "" for none; rows of the same signal with other labels are alternatives
    too. Series of one engine that differ in other labels (a finish reason,
    the `pid` of an API process, Ray's WorkerId) are merged with `merge`: counts are summed; of ratios and states the
    highest counts, because idle and dead processes report 0. A merged value above `most` is garbage and left out.
    A `slow` signal is requested with the histograms only, to keep the answers of the other polls small.
    """

    signal: str
    names: tuple[str, ...]
    where: tuple[tuple[str, str], ...] = ()
    merge: Literal["sum", "max"] = "sum"
    most: float = math.inf
    slow: bool = False


@dataclass(frozen=True, slots=True)
class LabelSignals:
    """Signals of the whole server that stand in the labels of a gauge whose value is the time when they were written.

    `read` gives them from the labels written last and those of some of the series, old ones among them. They are asked
    for with the histograms only.
    """

    name: str
    signals: tuple[str, ...]
    read: Callable[[Mapping[str, str], Sequence[Mapping[str, str]]], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What a table's `info_cache` may need to know of the whole page.

    `ranks` is how many engines describe their cache on it, `labelled` whether engines are told apart by a label,
    `names` all sample names found, in the table's own spelling.
    """

    ranks: int
    labelled: bool
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Table:
    """A runtime: its rows, and how its names are spelled.

    Names in rows start with `prefix`; `spellings` are the prefixes that may stand for it on a page, only one of
    which is used per page (the one with most series). Under a spelling in `relayed` another process serves the page,
    so that a missing process start says nothing. `engine_label` tells the engines of a page apart, `model_label` names
    what they serve.

    What a page says of the KV cache stands in the labels of the metric `info`, which `info_cache` reads, in the values
    of the gauges `cache`, whose signals are those fields of `CacheConfig` that are counts, or in both; then the value
    counts. `server_gauges` and `label_signals` are of the whole server, with neither label, and hold for each engine.
    """

    runtime: str
    prefix: str
    spellings: tuple[str, ...]
    relayed: frozenset[str]
    gauges: tuple[Row, ...]
    counters: tuple[Row, ...]
    histograms: tuple[Row, ...]
    info: str = ""
    info_cache: Callable[[Mapping[str, str], PageFacts], CacheConfig] = field(
        default=lambda labels, facts: CacheConfig()  # noqa: ARG005 - a table without an `info`
    )
    cache: tuple[Row, ...] = ()
    server_gauges: tuple[Row, ...] = ()
    label_signals: tuple[LabelSignals, ...] = ()
    engine_label: str = "engine"
    model_label: str = "model_name"

    def poll_names(self) -> tuple[str, ...]:
        """Return sample names to read on every poll: no buckets, nothing that is constant or may be older."""
        rows = (*self.gauges, *self.counters, *self.server_gauges)
        scalars = [name for row in rows if not row.slow for name in row.names]
        return tuple(dict.fromkeys([*scalars, STARTED]))

    def foreign_names(self) -> frozenset[str]:
        """Return names that are not the runtime's own, and are spelled the same on every page: its web framework's."""
        rows = self.server_gauges
        return frozenset(name for row in rows for name in row.names if not name.startswith(self.prefix)) | {STARTED}

    def all_names(self) -> tuple[str, ...]:
        """Return all sample names that this table reads."""
        stems = [name for row in self.histograms for name in row.names]
        parts = [stem + suffix for stem in stems for suffix in ("_bucket", "_count", "_sum")]
        slow = [name for row in (*self.gauges, *self.counters) if row.slow for name in row.names]
        slow += [row.name for row in self.label_signals]
        cache = [*([self.info] if self.info else []), *(name for row in self.cache for name in row.names)]
        return tuple(dict.fromkeys([*self.poll_names(), *slow, *parts, *cache]))

    def wanted(self) -> frozenset[bytes]:
        """Return all names as bytes, in every spelling, but for those whose labels are read by themselves."""
        foreign, labels = self.foreign_names(), {row.name for row in self.label_signals}
        own = [name.removeprefix(self.prefix) for name in self.all_names() if name not in foreign | labels]
        found = {spelling + name for spelling in self.spellings for name in own}
        return frozenset(name.encode() for name in found | foreign)
