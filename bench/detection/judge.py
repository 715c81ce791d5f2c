"""Episodes through the pipeline, as `kvpressure replay` does it, to verdicts; and what a Prometheus sees of them.

It scrapes every 15 s the series of an engine that people have, and those of the exporter. An engine's page is there as
a Prometheus has it: the series that rules ask for, by the names of the newest vLLM.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.detection.episodes import Frame, Spec, build
from bench.detection.score import UNKNOWN, Score, Second, score_track
from bench.detection.shipped import TODAY_SERIES, asked, named_by
from bench.detection.variants import AS_IS, VARIANTS, chosen
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.cli.replay import ReplayTarget
from kvpressure.config.thresholds import Thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.exposition import Snapshot
from kvpressure.exposition.text import SnapshotCollector
from kvpressure.model.environment import DeclaredLimit
from kvpressure.model.samples import EngineSample, GpuReport
from kvpressure.model.view import EngineView
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


Judge = Callable[[EngineView], str]


@dataclass(slots=True)
class Outcome:
    """One episode: its scores by variant, and of each engine as it is, the scrapes and the true stretches.

    `restarts` are the seconds at which its server started again; `replaced` says that its pod was made anew each time.
    """

    name: str
    group: str
    case: str
    scores: dict[str, Score] = field(default_factory=dict)
    scrapes: dict[str, list[Scrape]] = field(default_factory=dict)
    seconds: dict[str, list[Second]] = field(default_factory=dict)
    restarts: Sequence[float] = ()
    replaced: bool = False


def named_cause(view: EngineView) -> str:
    """The diagnosis's cause; `unknown` without one."""
    return UNKNOWN if view.diagnosis is None else view.diagnosis.cause.value


@dataclass(slots=True)
class Watched:
    """Of every engine: the verdicts, a poll each, and what a Prometheus saw, a scrape each."""

    seconds: dict[str, list[Second]] = field(default_factory=dict)
    scrapes: dict[str, list[Scrape]] = field(default_factory=dict)


def watched(
    frames: Iterable[Frame],
    name: str,
    thresholds: Thresholds,
    judge: Judge = named_cause,
    *,
    scraped: bool = True,
    declared: Mapping[str, float] | None = None,
) -> Watched:
    """Put an episode through the pipeline; without `scraped` no series are looked at, which is faster.

    `declared` are limits of the engine that could be read, by name; None where nobody could read any.
    """
    limits = None if declared is None else tuple(DeclaredLimit(limit, value, name) for limit, value in declared.items())
    pipeline, target = Pipeline(PipelineSettings(), thresholds), ReplayTarget(name, limits=limits)
    scraper = Scraper(pipeline, asked(), named_by(VLLM_ONLY) | TODAY_SERIES)
    found = Watched(scrapes=scraper.scrapes)
    for frame in frames:
        if scraped:
            scraper.before(frame)
        if frame.gpus is not None:
            pipeline.on_gpus("trace", GpuReport(frame.t, frame.gpus))
        for view in pipeline.on_page(target, frame.page):
            second = Second(frame.t, judge(view), frame.accepted[view.key.rank])
            found.seconds.setdefault(view.key.rank, []).append(second)
        if scraped:
            scraper.after(frame)
        pipeline.expire(frame.t)
    return found


def outcome(spec: Spec, thresholds: Thresholds, each: int = 3) -> Outcome:
    """Make the episode and judge it as it is and in `each` other variants (recordings: in all)."""
    episode = build(spec)
    result = Outcome(episode.name, episode.group, episode.case, restarts=episode.restarts, replaced=spec.replaced)
    for variant in list(VARIANTS) if each and spec.kind == "recording" else chosen(spec.seed, each):
        frames = VARIANTS[variant](episode.frames, random.Random(f"{episode.name}/{variant}"))
        seen = watched(frames, episode.name, thresholds, scraped=variant == AS_IS)
        score = result.scores[variant] = Score()
        for track in seen.seconds.values():
            score.add(score_track(track))
        if variant == AS_IS:
            result.seconds, result.scrapes = seen.seconds, seen.scrapes
    return result
