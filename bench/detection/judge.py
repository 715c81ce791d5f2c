"""Episodes through the pipeline, as `kvpressure replay` does it, to verdicts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.detection.episodes import Episode, Frame, Spec, build
from bench.detection.score import KV, UNKNOWN, Score, Second, score_track
from bench.detection.variants import AS_IS, VARIANTS, chosen
from kvpressure.app.engines import Pipeline, PipelineSettings
from kvpressure.cli.replay import ReplayTarget
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.samples import GpuReport
from kvpressure.model.view import EngineView

SCRAPE_SECONDS = 15.0
Judge = Callable[[EngineView], str]


@dataclass(frozen=True, slots=True)
class Scrape:
    """What a Prometheus sees every 15 s of one engine, `t` seconds after the episode began; and what is true then."""

    t: float
    values: dict[str, float]
    second: Second


@dataclass(slots=True)
class Outcome:
    """One episode: its scores by variant, and of each engine as it is, the scrapes and the true stretches."""

    name: str
    group: str
    case: str
    scores: dict[str, Score] = field(default_factory=dict)
    scrapes: dict[str, list[Scrape]] = field(default_factory=dict)
    seconds: dict[str, list[Second]] = field(default_factory=dict)


def named_cause(view: EngineView) -> str:
    """The diagnosis's cause; `unknown` without one."""
    return UNKNOWN if view.diagnosis is None else view.diagnosis.cause.value


def verdicts(
    frames: Iterable[Frame], name: str, thresholds: Thresholds, judge: Judge = named_cause
) -> dict[str, list[Second]]:
    """Every engine's verdicts, a poll each."""
    pipeline, target = Pipeline(PipelineSettings(), thresholds), ReplayTarget(name)
    found: dict[str, list[Second]] = {}
    for frame in frames:
        if frame.gpus is not None:
            pipeline.on_gpus("trace", GpuReport(frame.t, frame.gpus))
        for view in pipeline.on_page(target, frame.page):
            second = Second(frame.t, judge(view), frame.accepted[view.key.rank])
            found.setdefault(view.key.rank, []).append(second)
        pipeline.expire(frame.t)
    return found


def outcome(spec: Spec, thresholds: Thresholds, each: int = 3) -> Outcome:
    """Make the episode and judge it as it is and in `each` other variants (recordings: in all)."""
    episode = build(spec)
    result = Outcome(episode.name, episode.group, episode.case)
    for variant in list(VARIANTS) if spec.kind == "recording" else chosen(spec.seed, each):
        frames = VARIANTS[variant](episode.frames, random.Random(f"{episode.name}/{variant}"))
        tracks = verdicts(frames, episode.name, thresholds)
        score = result.scores[variant] = Score()
        for track in tracks.values():
            score.add(score_track(track))
        if variant == AS_IS:
            result.seconds = tracks
            result.scrapes = scrapes(episode, tracks)
    return result


def scrapes(episode: Episode, tracks: dict[str, list[Second]]) -> dict[str, list[Scrape]]:
    """One poll in 15 s of what the rules read."""
    found: dict[str, list[Scrape]] = {}
    begin = episode.frames[0].t
    said = {(engine, second.t): second for engine, track in tracks.items() for second in track}
    due = begin
    for frame in episode.frames:
        if frame.t < due:
            continue
        due += SCRAPE_SECONDS * (1 + (frame.t - due) // SCRAPE_SECONDS)
        for sample in frame.page.engines:
            second = said[sample.engine, frame.t]
            values = {**_engine_values(sample.gauges, sample.counters), **_memory(frame)}
            values["kvpressure_bottleneck"] = float(second.verdict == KV)
            found.setdefault(sample.engine, []).append(Scrape(frame.t - begin, values, second))
    return found


def _engine_values(gauges: Mapping[str, float], counters: Mapping[str, float]) -> dict[str, float]:
    names = {"kv_usage": "vllm:kv_cache_usage_perc", "waiting": "vllm:num_requests_waiting"}
    values = {name: gauges[signal] for signal, name in names.items() if signal in gauges}
    if "preemptions" in counters:
        values["vllm:num_preemptions_total"] = counters["preemptions"]
    return values


def _memory(frame: Frame) -> dict[str, float]:
    known: Sequence[float] = [
        gpu.memory_used_bytes / gpu.memory_total_bytes
        for gpu in frame.gpus or ()
        if gpu.memory_used_bytes is not None and gpu.memory_total_bytes
    ]
    return {"gpu_memory_used_ratio": max(known)} if known else {}
