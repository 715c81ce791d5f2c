"""The table of a runtime's metrics: signals, and the series that they are read from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from kvpressure.model.samples import CacheConfig

STARTED: Final = "process_start_time_seconds"

LARGEST_VALUE: Final = float(2**53)
"""Beyond, a float cannot count by one any more, and products of a few values would not be finite."""


@dataclass(frozen=True, slots=True)
class Row:
    """One signal and the metrics that carry it.

    `names` are alternatives, best first: the first that an engine has is used alone, they are never added. `where`
    are labels that must have the given value, "" for none, or begin with it where it ends in `*`; rows of the same
    signal with other labels are alternatives too. Series of one engine that differ in other labels (a finish reason,
    the `pid` of an API process, Ray's WorkerId) are merged with `merge`: counts are summed; of ratios and states the
    highest counts, because idle and dead processes report 0. Of those that differ in the label `parts` the merged
    values are added up: each is a part of the number. A merged value above `most` is garbage and left out.
    A `slow` signal is requested with the histograms only, to keep the answers of the other polls small.
    """

    signal: str
    names: tuple[str, ...]
    where: tuple[tuple[str, str], ...] = ()
    merge: Literal["sum", "max"] = "sum"
    parts: str = ""
    most: float = math.inf
    slow: bool = False


@dataclass(frozen=True, slots=True)
class LabelSignals:
    """Signals of the whole server that stand in the labels of a gauge whose value is the time when they were written.

    `read` gives them from the labels written last and those of some of the series, old ones among them. They are
    requested with the histograms only.
    """

    name: str
    signals: tuple[str, ...]
    read: Callable[[Mapping[str, str], Sequence[Mapping[str, str]]], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What a table's `info_cache` may need to know of the whole page.

    `ranks` is how many engines describe their cache on it, `labelled` whether engines have a label, `names` all sample
    names found, in the table's own spelling.
    """

    ranks: int
    labelled: bool
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Table:
    """A runtime: its rows, and how its names are spelled.

    Names in rows start with `prefix`; `spellings` are the prefixes that may stand for it on a page, only one of
    which is used per page (the one with most series). Under a spelling in `relayed` another process serves the page,
    so that a missing process start says nothing. `engine_label` distinguishes the engines of a page, `model_label`
    names what they serve.

    What a page says of the KV cache stands in the labels of the metric `info`, which `info_cache` reads, in the values
    of the gauges `cache`, whose signals are those fields of `CacheConfig` that are counts, or `capacity_blocks` of
    `block_size` tokens, or in both; then the value counts. `admission` is what a request has to fit with, as the
    runtime's scheduler has it. `server_gauges`, `server_counters` and `label_signals` are of the whole server, whatever
    labels they have, and hold for each engine.

    `role_label` is the label of its series that says what an engine does where prefill and decode are apart.

    `complete` makes the signals of a page's gauges out of those that rows have read, where a signal is in no metric by
    itself; rows may then have names of their own, with an underscore, which it takes out. `other_model_label` is the
    model's under another spelling. `within_engine` are labels of every series in which those of one engine differ.
    """

    runtime: str
    prefix: str
    spellings: tuple[str, ...]
    gauges: tuple[Row, ...]
    counters: tuple[Row, ...]
    histograms: tuple[Row, ...] = ()
    relayed: frozenset[str] = frozenset()
    info: str = ""
    info_cache: Callable[[Mapping[str, str], PageFacts], CacheConfig] = field(
        default=lambda labels, facts: CacheConfig()  # noqa: ARG005 - a table without an `info`
    )
    cache: tuple[Row, ...] = ()
    server_gauges: tuple[Row, ...] = ()
    server_counters: tuple[Row, ...] = ()
    label_signals: tuple[LabelSignals, ...] = ()
    admission: str = "prompt"
    complete: Callable[[dict[str, float]], dict[str, float]] | None = None
    engine_label: str = "engine"
    model_label: str = "model_name"
    other_model_label: str = ""
    role_label: str = ""
    within_engine: frozenset[str] = frozenset({"le", "pid"})

    def poll_names(self) -> tuple[str, ...]:
        """Return sample names to read on every poll: no buckets, nothing that is constant or may be older."""
        rows = (*self.gauges, *self.counters, *self.server_gauges, *self.server_counters)
        scalars = [name for row in rows if not row.slow for name in row.names]
        return tuple(dict.fromkeys([*scalars, STARTED]))

    def foreign_names(self) -> frozenset[str]:
        """Return names that are not the runtime's own, and are spelled the same on every page: its web framework's."""
        rows = (*self.server_gauges, *self.server_counters)
        return frozenset(name for row in rows for name in row.names if not name.startswith(self.prefix)) | {STARTED}

    def all_names(self) -> tuple[str, ...]:
        """Return all sample names that this table reads."""
        stems = [name for row in self.histograms for name in row.names]
        parts = [stem + suffix for stem in stems for suffix in ("_bucket", "_count", "_sum")]
        slow = [name for row in (*self.gauges, *self.counters, *self.server_counters) if row.slow for name in row.names]
        slow += [row.name for row in self.label_signals]
        cache = [*([self.info] if self.info else []), *(name for row in self.cache for name in row.names)]
        return tuple(dict.fromkeys([*self.poll_names(), *slow, *parts, *cache]))

    def wanted(self) -> frozenset[bytes]:
        """Return all names as bytes, in every spelling, but for those whose labels are read by themselves."""
        foreign, labels = self.foreign_names(), {row.name for row in self.label_signals}
        own = [name.removeprefix(self.prefix) for name in self.all_names() if name not in foreign | labels]
        read = {spelling + name for spelling in self.spellings for name in own}
        return frozenset(name.encode() for name in read | foreign)


@dataclass(frozen=True, slots=True)
class OptionalSignal:
    """Optional evidence of a page: `what` it is, for people, and `how` to get it, a sentence without a full stop.

    It is there when one of its `signals` is (docs/internals/signals.md, or fields of `CacheConfig`), of the `series`.
    Which verdicts would be more certain with it follows from the rules whose predicates name one of them.
    """

    what: str
    signals: tuple[str, ...]
    how: str
    series: tuple[str, ...] = ()


WHY_WAITING: Final = "why requests wait: for room, or deferred"


def never_exported(what: str, signal: str, runtime: str) -> OptionalSignal:
    """Return evidence that no version of a runtime has on its page."""
    return OptionalSignal(what, (signal,), f"no version of {runtime} exports it")
