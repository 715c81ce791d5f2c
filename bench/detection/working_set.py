"""`python -m bench.detection.working_set`: what is told of evictions on the lab's regimes about the working set.

The recordings are made by `python -m tests.lab --working-set SEED`; folders hold those of several seeds. A second is
one of eviction where a fifth of the prompt tokens computed in the 20 s around it had been evicted, by vLLM's own block
pool, and computing them took a fifth of the time. It is told where the verdict is KV pressure whose detail is
`eviction`, or that has the symptom `evicting` beside requests that wait. A stretch that is told is false where no
second within `EDGE_SECONDS` of any of it is one of eviction.

With `--beside 200` every recording whose family has one with that share of the working set in the same folder is
polled together with it, as another replica of its model: what an engine without a past is measured against.

The bounds of the age at eviction are compared minute by minute with the ages that the block pool has measured.
`--write-docs` writes the table to docs/internals/accuracy/detection.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from bench.detection.docs import DOCUMENT, with_working_set
from bench.detection.lab import LAB, recordings, records
from bench.detection.table import Table, percent
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.model.values import at
from kvpressure.model.verdict import Cause, Diagnosis
from kvpressure.model.view import EngineView
from tests.lab.working_set import FAMILY, MARK, find

FOLDER: Final = LAB / FAMILY
WORKERS: Final = 2

AROUND_SECONDS: Final = 10
EDGE_SECONDS: Final = 15
LEAST_RATIO: Final = 0.2
"""Of the computed prompt tokens, and of the time: what makes a second one of eviction."""

STEADY_SECONDS: Final = 10
MINUTE: Final = 60
LEAST_AGES: Final = 30
"""Evicted blocks of a minute of which a mean age is made."""
AROUND_BOUNDS: Final = 1.2
"""Bounds hold where pool and load do not change; means over a while in which they do may lie so far outside."""


@dataclass(frozen=True, slots=True)
class Score:
    """One recording, in seconds and minutes.

    `true` are seconds of eviction, `told_true` those of them that were told, `told_false` those told that are none,
    `false_stretches` how many stretches had no eviction near. `minutes` have a measured age at eviction and bounds of
    it; it lies between these in `within`, and at most a fifth outside in `near`. `jumps` counts changes of confidence
    by more than a third from one second to the next in which eviction was told in both.
    """

    regime: str
    true: int = 0
    told_true: int = 0
    told_false: int = 0
    false_stretches: int = 0
    minutes: int = 0
    within: int = 0
    near: int = 0
    jumps: int = 0

    def __add__(self, other: Score) -> Score:
        """Return both as one."""
        counts = (field.name for field in fields(self) if field.name != "regime")
        return Score(self.regime, **{name: getattr(self, name) + getattr(other, name) for name in counts})


def main() -> int:
    """Judge, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=[FOLDER], help="of recordings, by version")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--beside", metavar="SHARE", help="judge only what has a replica at that share, such as 200")
    parser.add_argument(
        "--write-docs", action="store_true", help="write the table to docs/internals/accuracy/detection.md"
    )
    options = parser.parse_args()
    paths = [path for folder in options.folders for path in recordings(folder)]
    if not paths:
        print("no recordings: `python -m tests.lab --working-set SEED` makes them")
        return 1
    pairs = [(path, None) for path in paths] if options.beside is None else list(_beside(paths, options.beside))
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        found = table_of([*pool.map(scored, *zip(*pairs, strict=True))])
    print(found.text())
    if options.write_docs and options.beside is None:
        DOCUMENT.write_text(with_working_set(DOCUMENT.read_text(), found))
    return 0


def table_of(scores: Sequence[Score]) -> Table:
    """A row per regime, over all seeds, and one of all."""
    regimes = dict.fromkeys(score.regime for score in scores)
    rows = [_row(name, [score for score in scores if score.regime == name]) for name in regimes]
    head = (
        "regime",
        "runs",
        "eviction s",
        "found",
        "recall",
        "found, none",
        "false stretches",
        "jumps",
        "minutes",
        "age in bounds",
        "within 20 %",
    )
    return Table("Evictions, by what the block pool did", head, (*rows, _row("all", scores)))


def _row(name: str, scores: Sequence[Score]) -> tuple[str, ...]:
    total = sum(scores, Score(name))
    return (
        name,
        str(len(scores)),
        str(total.true),
        str(total.told_true),
        percent(total.told_true / total.true if total.true else None),
        str(total.told_false),
        str(total.false_stretches),
        str(total.jumps),
        str(total.minutes),
        percent(total.within / total.minutes if total.minutes else None),
        percent(total.near / total.minutes if total.minutes else None),
    )


def _beside(paths: Sequence[Path], share: str) -> Iterator[tuple[Path, Path]]:
    """Recordings of smaller pools than that share, each with the one of the same clients and seed at that share."""
    for path in paths:
        family, dash, rest = path.name.rpartition("-")
        own, mark, seed = rest.partition(MARK)
        other = path.with_name(f"{family}{dash}{share}{mark}{seed}")
        if own.isdigit() and int(own) < int(share) and other.exists():
            yield path, other


def scored(path: Path, beside: Path | None = None) -> Score:
    """Return the score of one recording, polled together with that of another replica where there is one."""
    name = next(records(path))["regime"]["name"]
    regime = find(name)
    if regime is None:
        raise SystemExit(f"{path}: no regime of the working set is named {name}")
    caches: dict[int, Mapping[str, Any]] = {}
    views: dict[int, EngineView] = {}
    reader, pipeline = PageReader(), Pipeline(PipelineSettings(), load_thresholds())
    others = iter(()) if beside is None else records(beside)
    for record in records(path):
        if (other := next(others, None)) is not None:
            pipeline.on_page(Target("beside"), reader.read(other["page"].encode(), other["t"]))
        t = round(record["t"])
        caches[t] = record["truth"].get("cache") or {}
        for view in pipeline.on_page(Target("lab"), reader.read(record["page"].encode(), record["t"])):
            views[t] = view
    true = set(_evicting(caches, regime.cost.prefill_token_seconds))
    told = [t for t, view in views.items() if says_eviction(view.diagnosis)]
    minutes = list(_ages(caches, views))
    return Score(
        name.removeprefix(f"{FAMILY}-").partition(MARK)[0],
        true=len(true),
        told_true=len(true.intersection(told)),
        told_false=len(set(told) - true),
        false_stretches=sum(not _near(stretch, true) for stretch in _stretches(told)),
        minutes=len(minutes),
        within=sum(least <= age <= most for least, age, most in minutes),
        near=sum(least / AROUND_BOUNDS <= age <= most * AROUND_BOUNDS for least, age, most in minutes),
        jumps=_jumps(told, views),
    )


def says_eviction(diagnosis: Diagnosis | None) -> bool:
    """Return whether a verdict says that contexts are evicted and computed again."""
    if diagnosis is None or diagnosis.cause is not Cause.KV_CACHE_PRESSURE:
        return False
    beside = diagnosis.symptoms.get("evicting")
    return diagnosis.detail == "eviction" or (beside is not None and beside.state is True)


def _evicting(caches: Mapping[int, Mapping[str, Any]], token_seconds: float) -> Iterator[int]:
    for t in caches:
        near = [caches[other] for other in range(t - AROUND_SECONDS, t + AROUND_SECONDS + 1) if other in caches]
        computed, again = (sum(one.get(name, 0) for one in near) for name in ("computed", "again"))
        takes = again * token_seconds / len(near)
        if computed and again >= LEAST_RATIO * computed and takes >= LEAST_RATIO:
            yield t


def _ages(
    caches: Mapping[int, Mapping[str, Any]], views: Mapping[int, EngineView]
) -> Iterator[tuple[float, float, float]]:
    """Yield least age, measured age and most age of each minute that has all three, in seconds: means over blocks."""
    for end in sorted(views)[MINUTE::MINUTE]:
        found = [_age(caches[t], views[t]) for t in range(end - MINUTE + 1, end + 1) if t in views and t in caches]
        ages = [one for one in found if one is not None]
        blocks = sum(weight for weight, *_ in ages)
        if blocks >= LEAST_AGES:
            least, age, most = (sum(one[0] * one[place] for one in ages) / blocks for place in (1, 2, 3))
            yield least, age, most


def _age(cache: Mapping[str, Any], view: EngineView) -> tuple[float, float, float, float] | None:
    """Blocks evicted in a second, and the bounds around their mean age; None where there are none."""
    least, most = (at(view.derived, f"cache_eviction_age_{end}_seconds") for end in ("min", "max"))
    if least is None or most is None or "age" not in cache:
        return None
    return float(cache["evicted"]), least, cache["age"][0], most


def _stretches(told: Iterable[int]) -> list[tuple[int, int]]:
    """First and last second of each stretch."""
    found: list[tuple[int, int]] = []
    for t in sorted(told):
        if found and t - found[-1][1] <= 1:
            found[-1] = found[-1][0], t
        else:
            found.append((t, t))
    return found


def _near(stretch: tuple[int, int], true: set[int]) -> bool:
    first, last = stretch
    return any(first - EDGE_SECONDS <= t <= last + EDGE_SECONDS for t in true)


def _jumps(told: Sequence[int], views: Mapping[int, EngineView]) -> int:
    sure = {t: found.confidence for t in told if (found := views[t].diagnosis) is not None}
    return sum(t + 1 in sure and abs(sure[t + 1] - sure[t]) > 1 / 3 for t in sure)


if __name__ == "__main__":
    sys.exit(main())
