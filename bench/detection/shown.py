"""What a Prometheus scrapes every 15 s: the series of an engine that people have, and those of the exporter.

An engine's page as a Prometheus has it: the series that rules ask for, by the names of the newest vLLM.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.detection.episodes import Frame
from kvpressure.engine_state import Pipeline
from kvpressure.exposition import Snapshot
from kvpressure.exposition.text import SnapshotCollector
from kvpressure.model.samples import EngineSample
from kvpressure.runtimes.vllm.metrics import COUNTERS, GAUGES, HISTOGRAMS, SERVER_GAUGES


@dataclass(frozen=True, slots=True)
class Series:
    """One series at one moment."""

    name: str
    labels: Mapping[str, str]
    value: float


_SERIES: Final = {row.signal: (row.names[0], dict(row.where)) for row in (*GAUGES, *COUNTERS, *SERVER_GAUGES)}
"""Signal to a metric and the labels that it is told by there."""

_SUMS: Final = {row.signal: f"{row.names[0]}_sum" for row in HISTOGRAMS}
"""Signal of a histogram to the series that adds up what it observed."""


def page_series(sample: EngineSample, wanted: Collection[str]) -> Iterator[Series]:
    """What the page says, of the metrics in `wanted`; what is not on it is not there."""
    for signal, value in (*sample.gauges.items(), *sample.counters.items()):
        name, labels = _SERIES.get(signal, ("", {}))
        if name in wanted:
            yield Series(name, labels, value)
    for signal, histogram in sample.histograms.items():
        if _SUMS.get(signal) in wanted:
            yield Series(_SUMS[signal], {}, histogram.sum)


SCRAPE_SECONDS: Final = 15.0
LATE_SECONDS: Final = 2.0
"""A page that comes up to this long after a scrape was due is the one that the scrape finds."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """What there is to see of one engine, `t` seconds after the episode began.

    `values` is what its own page says, empty while it does not answer, `page` as much of it as has labels, `shown` what
    the exporter says of it.
    """

    t: float
    values: Mapping[str, float] = field(default_factory=dict)
    shown: Sequence[Series] = ()
    page: Sequence[Series] = ()


class Scraper:
    """Looks at an episode every SCRAPE_SECONDS from its first page on; `asked` are series of the exporter.

    `asked_of_vllm` are those of the engine's own page.
    """

    def __init__(self, pipeline: Pipeline, asked: Collection[str], asked_of_vllm: Collection[str]) -> None:
        self.scrapes: dict[str, list[Scrape]] = {}
        self._pipeline = pipeline
        self._asked = frozenset(asked)
        self._asked_of_vllm = frozenset(asked_of_vllm)
        self._begin: float | None = None
        self._due = 0.0

    def before(self, frame: Frame) -> None:
        """To be called before the pipeline takes `frame`: the scrapes since the last one, while no page came."""
        if self._begin is None:
            self._begin = self._due = frame.t
        while self._due < frame.t - LATE_SECONDS:
            for engine, shown in self._shown(self._due).items():
                self._add(engine, Scrape(self._due - self._begin, {}, shown))
            self._due += SCRAPE_SECONDS

    def after(self, frame: Frame) -> None:
        """To be called after the pipeline has taken `frame`: the scrape that finds it, if one is due."""
        if self._begin is None or frame.t < self._due:
            return
        shown = self._shown(frame.t)
        for sample in frame.page.engines:
            page = tuple(page_series(sample, self._asked_of_vllm))
            values = {one.name: one.value for one in page if not one.labels} | _memory(frame)
            labelled = tuple(one for one in page if one.labels)
            self._add(sample.engine, Scrape(frame.t - self._begin, values, shown.get(sample.engine, ()), labelled))
        self._due += SCRAPE_SECONDS

    def _add(self, engine: str, scrape: Scrape) -> None:
        self.scrapes.setdefault(engine, []).append(scrape)

    def _shown(self, now: float) -> dict[str, list[Series]]:
        """The exporter's page, by engine."""
        found: dict[str, list[Series]] = {}
        snapshot = Snapshot(now, self._pipeline.engine_views(now), silent=self._pipeline.silent_views(now))
        for metric in SnapshotCollector(snapshot).collect():
            for sample in metric.samples:
                if sample.name in self._asked:
                    labels = {name: value for name, value in sample.labels.items() if value}
                    found.setdefault(labels["engine"], []).append(Series(sample.name, labels, float(sample.value)))
        return found


def _memory(frame: Frame) -> dict[str, float]:
    known = [
        gpu.memory_used_bytes / gpu.memory_total_bytes
        for gpu in frame.gpus or ()
        if gpu.memory_used_bytes is not None and gpu.memory_total_bytes
    ]
    return {"gpu_memory_used_ratio": max(known)} if known else {}
