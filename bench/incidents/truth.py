"""Labelled runs thinned to a scrape interval, through the look back's own follower, against what was true.

A true incident is a stretch in which one losing cause alone may be named for long enough. It is found where an incident
overlaps it; an incident during which no losing cause may be named, nor shortly before, is invented.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from bench.detection.episodes import Frame
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.environment import DeclaredLimit
from kvpressure.model.samples import EngineSample, HistogramSample
from kvpressure.model.view import LOSING
from kvpressure.prometheus.client import Server
from kvpressure.prometheus.names import Discovered, Json, Target
from kvpressure_incidents.follow import Follower, Task

LEAST_SECONDS: Final = 120.0
LOSING_WORDS: Final = frozenset(cause.value for cause in LOSING)
LATE_STEPS: Final = 6.0
"""Windows hold so many steps: for that long after trouble ended it may still be told."""


@dataclass(frozen=True, slots=True)
class True_:  # noqa: N801
    """A true incident of one engine."""

    engine: str
    cause: str
    began: float
    ended: float


@dataclass(slots=True)
class Tally:
    """Counts over many runs; `right` are those found whose cause is the true one, `delays` seconds until told."""

    true: int = 0
    found: int = 0
    right: int = 0
    told: int = 0
    invented: int = 0

    def add(self, other: Tally) -> None:
        """Count another's too."""
        for name in ("true", "found", "right", "told", "invented"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def thinned(frames: Iterable[Frame], step: float, phase: float = 0.0) -> Iterator[Frame]:
    """The frames that a scrape every `step` seconds finds."""
    due: float | None = None
    for frame in frames:
        due = frame.t + phase if due is None else due
        if frame.t >= due:
            yield frame
            while due <= frame.t:
                due += step


def true_incidents(frames: Sequence[Frame]) -> list[True_]:
    """The clear ones that are long enough, of every engine."""
    found = []
    for engine in sorted({name for frame in frames for name in frame.accepted}):
        track = [(frame.t, frame.accepted[engine]) for frame in frames if engine in frame.accepted]
        for accepted, run in groupby(track, key=lambda pair: pair[1]):
            times = [t for t, _ in run]
            if len(accepted) == 1 and accepted <= LOSING_WORDS and times[-1] - times[0] >= LEAST_SECONDS:
                found.append(True_(engine, next(iter(accepted)), times[0], times[-1]))
    return found


def told(
    frames: Sequence[Frame],
    step: float,
    thresholds: Thresholds,
    *,
    phase: float = 0.0,
    declared: tuple[DeclaredLimit, ...] | None = None,
    shortest: float = LEAST_SECONDS,
) -> list[Json]:
    """The incidents that a look back tells of."""
    target = Target((("instance", "bench"),))
    discovered = Discovered(target, "vllm", step)
    task = Task(Server("http://none"), discovered, (), None, (thresholds,), shortest, declared)
    follower = Follower(task, step, thresholds, advises=False)
    for frame in thinned(frames, step, phase):
        follower.page(frame.page)
    follower.stretch_ends(last=True)
    return list(follower.incidents())


def tally(frames: Sequence[Frame], incidents: Sequence[Json], step: float) -> Tally:
    """How they compare."""
    true = true_incidents(frames)
    late = LATE_STEPS * step
    found = right = 0
    for one in true:
        mine = [
            incident
            for incident in incidents
            if incident["engine"] == one.engine
            and incident["began"] <= one.ended + late
            and _end(incident) >= one.began
        ]
        found += bool(mine)
        right += any(one.cause in incident["causes"] for incident in mine)
    invented = sum(not _possible(frames, incident, late) for incident in incidents)
    return Tally(len(true), found, right, len(incidents), invented)


def _possible(frames: Sequence[Frame], incident: Json, late: float) -> bool:
    span = incident["began"] - late, _end(incident)
    return any(
        span[0] <= frame.t <= span[1] and frame.accepted.get(incident["engine"], frozenset()) & LOSING_WORDS
        for frame in frames
    )


def _end(incident: Json) -> float:
    return float(incident["began"] + incident["seconds"])


def repeated(frames: Sequence[Frame], times: int) -> list[Frame]:
    """A run so many times in a row, its counters going on: recordings of three minutes hold three scrapes a minute."""
    if times == 1:
        return list(frames)
    first = {sample.engine: sample for sample in frames[0].page.engines}
    last = {sample.engine: sample for frame in frames for sample in frame.page.engines}
    length = frames[-1].t - frames[0].t + (frames[-1].t - frames[0].t) / max(1, len(frames) - 1)
    found = []
    for turn in range(times):
        for frame in frames:
            engines = tuple(
                _later(one, turn, first.get(one.engine, one), last.get(one.engine, one)) for one in frame.page.engines
            )
            t = frame.t + turn * length
            found.append(replace(frame, t=t, page=replace(frame.page, t=t, engines=engines)))
    return found


def _later(sample: EngineSample, turn: int, first: EngineSample, last: EngineSample) -> EngineSample:
    counters = {
        name: value + turn * (last.counters.get(name, value) - first.counters.get(name, 0.0))
        for name, value in sample.counters.items()
    }
    histograms = {
        name: _added(value, turn, first.histograms.get(name), last.histograms.get(name))
        for name, value in sample.histograms.items()
    }
    return replace(sample, counters=counters, histograms=histograms)


def _added(
    value: HistogramSample, turn: int, first: HistogramSample | None, last: HistogramSample | None
) -> HistogramSample:
    if last is None or last.bounds != value.bounds:
        return value
    zero = HistogramSample(value.bounds, (0.0,) * len(value.bounds), 0.0)
    base = first if first is not None and first.bounds == value.bounds else zero
    counts = tuple(v + turn * (b - a) for v, a, b in zip(value.counts, base.counts, last.counts, strict=True))
    return HistogramSample(value.bounds, counts, value.sum + turn * (last.sum - base.sum))
