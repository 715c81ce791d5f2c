"""Episodes through the pipeline, as `kvpressure replay` does it, to verdicts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.detection.episodes import Frame, Spec, build
from bench.detection.score import UNKNOWN, Score, Second, score_track
from bench.detection.shipped import TODAY_SERIES, asked, named_by
from bench.detection.shown import Scrape, Scraper
from bench.detection.variants import AS_IS, VARIANTS, chosen
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.cli.replay import ReplayTarget
from kvpressure.config.thresholds import Thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.model.environment import DeclaredLimit
from kvpressure.model.samples import GpuReport
from kvpressure.model.view import EngineView

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
