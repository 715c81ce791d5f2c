"""`python -m bench.incidents`: what a look back finds of the lab's recordings, by time between two scrapes.

`--version` is a version of vLLM that `make lab` has recorded, `--wrong` lists what was missed, wrong or invented.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.detection.episodes import Frame
from bench.detection.lab import RECORDINGS, records
from bench.incidents.truth import Tally, repeated, tally, told
from kvpressure.config.thresholds import load_thresholds
from kvpressure.scrape.reader import PageReader
from kvpressure.scrape.recordings import stem

STEPS: Final = (15.0, 30.0, 60.0)
TIMES: Final = 4


def main() -> None:
    """Judge, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="0.33.0")
    parser.add_argument("--wrong", action="store_true")
    options = parser.parse_args()
    totals = {step: Tally() for step in STEPS}
    for path in sorted((RECORDINGS / options.version).glob("*.jsonl.xz")):
        frames = repeated(list(_frames(path)), TIMES)
        for step in STEPS:
            found = tally(frames, told(frames, step, load_thresholds()), step)
            totals[step].add(found)
            if options.wrong and (found.right < found.true or found.invented):
                print(f"{stem(path)} at {step:.0f} s: {found}")
    print("| scrape every | true incidents | found | with the right cause | missed | invented |")
    print("|---|---|---|---|---|---|")
    for step, one in totals.items():
        print(f"| {step:.0f} s | {one.true} | {one.found} | {one.right} | {one.true - one.found} | {one.invented} |")


def _frames(path: Path) -> Iterator[Frame]:
    reader = PageReader()
    for record in records(path):
        page, accepted = reader.read(record["page"].encode(), record["t"]), frozenset(record["truth"]["accepted"])
        yield Frame(record["t"], page, None, {sample.engine: accepted for sample in page.engines})


if __name__ == "__main__":
    main()
