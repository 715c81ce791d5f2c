"""`python -m bench.detection.lab`: verdicts on recordings of the scheduler lab against what vLLM's scheduler did.

The recordings are made by `make lab` (tests/lab) and carry the causes that may be named in every second. Every page
goes through the pipeline as in `kvpressure run`, one poll a second, without GPU data. What counts is in lab_score.py.
`--write-docs` writes the lab's part of docs/internals/accuracy/detection.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from bench.detection.episodes import Frame
from bench.detection.judge import Outcome, watched
from bench.detection.lab_score import Judged, Moment, alert_rows, alert_tables, scored, seeds_table, tables
from bench.detection.rules import at_intervals
from bench.detection.table import Table
from bench.written import write_part
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import SUFFIXES, open_trace, stem

LAB: Final = Path(__file__).parents[2] / ".cache" / "lab"
RECORDINGS: Final = LAB / "recordings"
VARIED: Final = LAB / "varied"
"""Regimes varied by a seed: what was tuned on the regimes as written is judged on other servers."""
RESULTS: Final = Path(__file__).parent / "lab.json"
WORKERS: Final = 2


def main() -> int:
    """Judge, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=RECORDINGS)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument(
        "--write-docs", action="store_true", help="write the lab's part of docs/internals/accuracy/detection.md"
    )
    parser.add_argument("--wrong", action="store_true", help="tell of each recording what was called what")
    options = parser.parse_args()
    found = judge(options.folder, workers=options.workers, write_docs=options.write_docs)
    for row in (one.record() for one in found if options.wrong):
        if row["wrong"]:
            told = ", ".join(f"{words} {seconds} s" for words, seconds in row["wrong"].items())
            print(f"{row['version']} {row['regime']}: {told}")
    return 0


def judge(folder: Path = RECORDINGS, *, workers: int = WORKERS, write_docs: bool = False) -> list[Judged]:
    """Judge what is there, print it, and write lab.json when it is the whole set, with those varied beside it."""
    paths = recordings(folder)
    if not paths:
        print(f"no recordings of the scheduler lab in {folder}: `make lab` makes them")
        return []
    found = all_judged(paths, workers)
    alerts = at_intervals([one.outcome for one in found])
    shown = [*tables(found), *alert_tables(alerts, "in the scheduler lab")]
    for table in shown:
        print(table.text())
    if folder == RECORDINGS:
        shown += held_out(workers)
        rows = [*(one.record() for one in found), *alert_rows(alerts.get(15, []))]
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    if write_docs:
        write_part("detection.md", "bench.detection.lab", "\n".join(table.markdown() for table in shown))
    return found


def held_out(workers: int = WORKERS, folder: Path = VARIED) -> list[Table]:
    """Tables of the varied regimes, by seed; none where there are no recordings of them."""
    found = all_judged(recordings(folder), workers)
    if not found:
        return []
    alerts = at_intervals([one.outcome for one in found])
    shown = [seeds_table(found), *alert_tables(alerts, "on varied regimes")]
    for table in shown:
        print(table.text())
    return shown


def moments(path: Path) -> list[Moment]:
    """The verdicts on a recording, beside its truth."""
    return played(path)[0]


def played(path: Path) -> tuple[list[Moment], Outcome]:
    """The verdicts on a recording beside its truth, and what a Prometheus saw of it, every 15 s."""
    told: dict[float, tuple[str, str]] = {}
    declared = next(records(path)).get("regime", {}).get("declared")
    seen = watched(_frames(path, told), stem(path), load_thresholds(), declared=declared)
    outcome = Outcome(f"{path.parent.name}/{stem(path)}", "lab", stem(path), {}, seen.scrapes, seen.seconds)
    verdicts = sorted((second for track in seen.seconds.values() for second in track), key=lambda second: second.t)
    return [Moment(second.t, second.verdict, *told[second.t], second.accepted) for second in verdicts], outcome


def _frames(path: Path, told: dict[float, tuple[str, str]]) -> Iterator[Frame]:
    """The recording's pages; each one's label and detail go into `told`."""
    reader = PageReader()
    for record in records(path):
        t, truth = record["t"], record["truth"]
        page, accepted = reader.read(record["page"].encode(), t), frozenset(truth["accepted"])
        told[t] = record["label"], truth["detail"]
        yield Frame(t, page, None, {sample.engine: accepted for sample in page.engines})


def judged(path: Path) -> Judged:
    """One recording's score."""
    about = next(records(path))["regime"]
    track, outcome = played(path)
    return Judged(about["name"], about["version"], tuple(about["rows"]), scored(track), outcome)


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a recording."""
    with open_trace(path, "rt") as file:
        for line in file:
            yield json.loads(line)


def all_judged(paths: Sequence[Path], workers: int = WORKERS) -> list[Judged]:
    """Every recording, in order, by that many processes."""
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(judged, paths, chunksize=4))


def recordings(folder: Path = RECORDINGS) -> list[Path]:
    """What `make lab` has made; empty when it has not run."""
    return sorted(path for path in folder.glob("*/*") if path.name.endswith(SUFFIXES))


if __name__ == "__main__":
    sys.exit(main())
