"""`python -m bench.incidents`: what a look back finds of the lab's recordings, by time between two scrapes.

Of every version of vLLM that `make lab` has recorded, or of one (`--version`). `--wrong` lists what was missed, wrong
or invented, `--write-docs` writes the table of docs/internals/accuracy/incidents.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.detection.episodes import Frame
from bench.detection.lab import RECORDINGS, records
from bench.incidents.truth import Tally, repeated, tally, told
from bench.written import write_part
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import stem

STEPS: Final = (15.0, 30.0, 60.0)
TIMES: Final = 4


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
        frames = repeated(list(_frames(path)), TIMES)
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
