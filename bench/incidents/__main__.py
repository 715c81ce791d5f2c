"""`python -m bench.incidents`: what a look back finds of the lab's recordings, by time between two scrapes.

Of every version of vLLM that `make lab` has recorded, or of one (`--version`). A true incident is a stretch in which
one losing cause alone may be named for long enough. It is found where an incident overlaps it; an incident during which
no losing cause may be named, nor shortly before, is invented. `--wrong` lists what was missed, wrong or invented,
`--write-docs` writes the table of docs/internals/accuracy/incidents.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final

from bench.detection.episodes import Frame
from bench.detection.lab import RECORDINGS, records
from bench.detection.variants import moved
from bench.written import write_part
from kvpressure.config.thresholds import Thresholds, load_thresholds
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import stem
from kvpressure.model.view import LOSING
from kvpressure.prometheus.client import Server
from kvpressure.prometheus.names import Discovered, Json, Target
from kvpressure_incidents.follow import Follower, Task

STEPS: Final = (15.0, 30.0, 60.0)
TIMES: Final = 4


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
    """Counts over many runs; `right` are those found whose cause is the true one."""

    true: int = 0
    found: int = 0
    right: int = 0
    invented: int = 0

    def add(self, other: Tally) -> None:
        """Count another's too."""
        for name in ("true", "found", "right", "invented"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def thinned(frames: Sequence[Frame], step: float) -> Iterator[Frame]:
    """The frames that a scrape every `step` seconds finds."""
    due = frames[0].t
    for frame in frames:
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


def told(frames: Sequence[Frame], step: float, thresholds: Thresholds) -> list[Json]:
    """The incidents that a look back tells of."""
    target = Target((("instance", "bench"),))
    discovered = Discovered(target, "vllm", step)
    task = Task(Server("http://none"), discovered, (), None, (thresholds,), LEAST_SECONDS, None)
    follower = Follower(task, step, thresholds, advises=False)
    for frame in thinned(frames, step):
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
    return Tally(len(true), found, right, invented)


def _possible(frames: Sequence[Frame], incident: Json, late: float) -> bool:
    span = incident["began"] - late, _end(incident)
    return any(
        span[0] <= frame.t <= span[1] and frame.accepted.get(incident["engine"], frozenset()) & LOSING_WORDS
        for frame in frames
    )


def _end(incident: Json) -> float:
    return float(incident["began"] + incident["seconds"])


def repeated(frames: Sequence[Frame], times: int) -> Iterator[Frame]:
    """A run so many times in a row, its counters going on: recordings of three minutes hold three scrapes a minute."""
    first = {sample.engine: sample for sample in frames[0].page.engines}
    last = {sample.engine: sample for frame in frames for sample in frame.page.engines}
    length = (frames[-1].t - frames[0].t) * len(frames) / max(1, len(frames) - 1)
    for turn in range(times):
        for frame in frames:
            engines = tuple(
                moved(moved(one, last.get(one.engine), turn), first.get(one.engine), -turn)
                for one in frame.page.engines
            )
            t = frame.t + turn * length
            yield replace(frame, t=t, page=replace(frame.page, t=t, engines=engines))


def main() -> None:
    """Judge, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="*")
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    paths = sorted(RECORDINGS.glob(f"{options.version}/*.jsonl.xz"))
    totals = {step: Tally() for step in STEPS}
    for path in paths:
        frames = list(repeated(list(_frames(path)), TIMES))
        for step in STEPS:
            found = tally(frames, told(frames, step, load_thresholds()), step)
            totals[step].add(found)
            if options.wrong and (found.right < found.true or found.invented):
                print(f"{path.parent.name} {stem(path)} at {step:.0f} s: {found}", flush=True)
    table = "\n".join(_table(totals))
    print(f"{len(paths)} recordings\n\n{table}")
    if options.write_docs:
        write_part("incidents.md", "bench.incidents", table)


def _table(totals: dict[float, Tally]) -> Iterator[str]:
    yield "| scrape every | true incidents | found | with the right cause | missed | invented |"
    yield "|---|--:|--:|--:|--:|--:|"
    for step, one in totals.items():
        yield f"| {step:.0f} s | {one.true} | {one.found} | {one.right} | {one.true - one.found} | {one.invented} |"


def _frames(path: Path) -> Iterator[Frame]:
    reader = PageReader()
    for record in records(path):
        page, accepted = reader.read(record["page"].encode(), record["t"]), frozenset(record["truth"]["accepted"])
        yield Frame(record["t"], page, None, {sample.engine: accepted for sample in page.engines})


if __name__ == "__main__":
    main()
