"""`python -m bench.silicon`: tables of step times, out of aiconfigurator-core, and how near they are to it.

    python3.12 -m venv .venv-silicon
    .venv-silicon/bin/pip install --require-hashes -r bench/silicon/requirements.txt
    .venv-silicon/bin/python -m bench.silicon make            # capacity/step_tables/*.json, and answers for the tests
    .venv-silicon/bin/python -m bench.silicon check           # the tables beside the library, at random steps
    .venv/bin/python -m bench.silicon predict                 # `whatif --gpu --model` beside the lab, in .venv

The library is a dependency of this command alone: 80 MB, and 300 MB of what it needs. Names choose tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.silicon.compare import Shape, distances, shapes
from bench.silicon.tables import TABLES
from kvpressure.capacity.silicon import Library, Made, provenance, table, written
from kvpressure.simulation.step_table import parse

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "exporter" / "kvpressure" / "capacity" / "step_tables"
ANSWERS: Final = ROOT / "tests" / "fixtures" / "silicon.json"
MAX_BYTES: Final = 50_000
MAX_MEDIAN: Final = 0.01
STEPS: Final = 3_000
RECORDED: Final = 12
"""Answers of the library a table, which the tests hold it to without the library."""
SEED: Final = 28


def main() -> int:
    """Make tables, or compare them; 1 where one is too large or too far from the library."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "check", "predict"))
    parser.add_argument("names", nargs="*", help="tables, or beginnings of their names; all when none is given")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seeds", type=int, nargs="+", default=[201, 202], help="of what is predicted")
    parser.add_argument("--write-docs", action="store_true", help="what is predicted, into accuracy/cards.md")
    options = parser.parse_args()
    if options.what == "predict":
        from bench.silicon.predict import report  # noqa: PLC0415 - what the library's environment lacks

        return report(options.seeds, write=options.write_docs)
    wanted = [made for made in TABLES if not options.names or any(map(made.name.startswith, options.names))]
    if options.what == "make":
        return _make(wanted)
    return _check(wanted, options.steps, options.seed)


def _make(wanted: Sequence[Made]) -> int:
    about = {"command": "python -m bench.silicon make", **provenance(), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    large, answers = 0, json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    for made in wanted:
        library = Library(made)
        text = written(table(made, library, about))
        (FOLDER / f"{made.name}.json").write_text(text)
        answers[made.name] = [_answer(library, shape) for shape in shapes(RECORDED, SEED)]
        print(f"{made.name:32} {len(text):6} bytes", flush=True)
        large += len(text) > MAX_BYTES
    lines = (f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in sorted(answers.items()))
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return int(large > 0)


def _answer(library: Library, shape: Shape) -> list[Any]:
    return [*shape, round(library.step(*shape), 1)]


def _check(wanted: Sequence[Made], steps: int, seed: int) -> int:
    far = 0
    for made in wanted:
        table_ = parse((FOLDER / f"{made.name}.json").read_bytes())
        shares = distances(table_, Library(made), steps, seed)
        print(f"{made.name:32} median {median(shares):.2%}, worst {shares[-1]:.2%} of {steps} steps", flush=True)
        far += median(shares) > MAX_MEDIAN
    return int(far > 0)


if __name__ == "__main__":
    sys.exit(main())
