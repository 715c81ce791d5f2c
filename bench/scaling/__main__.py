"""`python -m bench.scaling`: several autoscalers on the same traffic; bad minutes, and what they cost in replicas.

Every run is deterministic. Those that are in results.json already are kept with `--keep`; `--write-docs` writes the
tables of docs/internals/accuracy/scaling.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bench.scaling.shapes import SHAPES
from bench.scaling.table import OURS, PEERS, Run, all_tables, static_begin
from bench.scaling.worker import answers
from bench.written import write_part

RESULTS: Final = Path(__file__).parent / "results.json"
MAX_STATIC: Final = 8


def main() -> int:
    """Run what is missing, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the runs that results.json has")
    parser.add_argument("--again", action="append", default=[], help="with --keep: run this autoscaler again")
    parser.add_argument("--write-docs", action="store_true")
    given = parser.parse_args()
    runs: dict[tuple[str, str], Run] = {}
    if given.keep and RESULTS.exists():
        kept = (Run(**one) for one in json.loads(RESULTS.read_text()))
        runs = {run.key: run for run in kept if run.autoscaler not in given.again}
    names = [(shape.name, name) for shape in SHAPES for name in (OURS, *PEERS)]
    _run((one for one in names if one not in runs), runs)
    for shape in SHAPES:
        _static(shape.name, runs)
    text = "\n\n".join(all_tables(list(runs.values())))
    print(text)
    if given.write_docs:
        write_part("scaling.md", "bench.scaling", text)
    return 0


def _static(shape: str, runs: dict[tuple[str, str], Run]) -> None:
    """Fixed numbers from the mean of ours up, until one holds the objective as well as any autoscaler."""
    of_shape = [run for (name, _), run in runs.items() if name == shape]
    best = min(run.violating_minutes for run in of_shape if not run.is_static)
    for number in range(static_begin(runs[shape, OURS]), MAX_STATIC + 1):
        _run((one for one in [(shape, f"static {number}")] if one not in runs), runs)
        if runs[shape, f"static {number}"].violating_minutes <= best:
            return


def _run(wishes: Iterable[tuple[str, str]], runs: dict[tuple[str, str], Run]) -> None:
    """In one process; each answer is kept as it comes."""
    lines = ({"shape": shape, "autoscaler": name} for shape, name in wishes)
    for answer in answers("bench.scaling.fleet", lines):
        run = Run(**answer)
        runs[run.key] = run
        print(f"{run.shape}, {run.autoscaler}: {run.violating_minutes} bad minutes", file=sys.stderr, flush=True)
        RESULTS.write_text("[\n" + ",\n".join(json.dumps(one.__dict__) for one in runs.values()) + "\n]\n")


if __name__ == "__main__":
    sys.exit(main())
