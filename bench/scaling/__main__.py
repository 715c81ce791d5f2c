"""`python -m bench.scaling`: several autoscalers on the same traffic; bad minutes, and what they cost in replicas.

Every run is deterministic. Those that are in results.json already are kept with `--keep`; `--write-docs` writes the
tables of docs/internals/accuracy/scaling.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.scaling.fleet import OTHERS
from bench.scaling.shapes import SECONDS, SHAPES, Written
from bench.scaling.worker import answers
from bench.written import write_part

OURS: Final = "kvpressure"
TITLES: Final[Mapping[Written, str]] = {
    "first": "traffic",
    "second": "traffic, second round",
    "later": "unseen traffic",
}
PEERS: Final = tuple(OTHERS)


@dataclass
class Run:
    """What one autoscaler came to on one shape; `bad` are the numbers of its violating minutes."""

    shape: str
    autoscaler: str
    violating_minutes: int
    replica_hours: float
    requests: int
    late: int
    slow: int
    replicas: list[int]
    bad: list[int]

    @property
    def key(self) -> tuple[str, str]:
        """Who, on what."""
        return self.shape, self.autoscaler

    @property
    def is_static(self) -> bool:
        """A fixed number."""
        return self.autoscaler.startswith("static ")


def static_begin(run: Run) -> int:
    """The fixed number to begin with: as many as ours were on average."""
    return max(1, math.floor(run.replica_hours * 3600 / SECONDS))


def all_tables(runs: Sequence[Run]) -> list[str]:
    """A table for the shapes of each round, and one of sums."""
    known, found = {run.key: run for run in runs}, []
    for written, title in TITLES.items():
        names = [shape.name for shape in SHAPES if shape.written == written]
        found.append("\n".join(_table(names, known, title)))
    return [*found, "\n".join(_sums(known))]


def _sums(runs: dict[tuple[str, str], Run]) -> Iterator[str]:
    """Of every shape that everyone was run on: bad minutes, replica-hours, and these beside those of the best peer."""
    done = [shape.name for shape in SHAPES if all((shape.name, one) in runs for one in (OURS, *PEERS))]
    bad = {one: sum(runs[name, one].violating_minutes for name in done) for one in (OURS, *PEERS)}
    hours = {one: sum(runs[name, one].replica_hours for name in done) for one in (OURS, *PEERS)}
    best = min(PEERS, key=lambda one: (bad[one], hours[one]))
    yield f"| all {len(done)} | bad minutes | replica-hours | beside {best} |"
    yield "|---|--:|--:|--:|"
    for one in (OURS, *PEERS) if done else ():
        yield f"| {one} | {bad[one]} | {hours[one]:.1f} | {100 * (hours[one] / hours[best] - 1):+.1f} % |"


def _table(names: Sequence[str], runs: dict[tuple[str, str], Run], title: str) -> Iterator[str]:
    who = (OURS, *PEERS)
    yield f"| {title} | {' | '.join(who)} | best fixed number |"
    yield f"|---|{'--:|' * (len(who) + 1)}"
    done = [name for name in names if all((name, one) in runs for one in who)]
    if not done:
        yield f"| not run yet |{' |' * (len(who) + 1)}"
        return
    for name in done:
        cells = [runs[name, one] for one in who]
        fewest = min(run.violating_minutes for run in cells)
        shown = [_cell(run, best=run.violating_minutes == fewest) for run in cells]
        mark = "" if cells[0].violating_minutes == fewest else " (another is better)"
        yield f"| {name}{mark} | {' | '.join(shown)} | {_fixed(name, runs)} |"
    totals = [[runs[name, one] for name in done] for one in who]
    sums = [(sum(run.violating_minutes for run in of), sum(run.replica_hours for run in of)) for of in totals]
    yield f"| **all {len(done)}** | {' | '.join(f'{bad}, {hours:.1f} h' for bad, hours in sums)} | |"


def _cell(run: Run, *, best: bool) -> str:
    text = f"{run.violating_minutes}, {run.replica_hours:.2f} h"
    return f"**{text}**" if best else text


def _fixed(name: str, runs: dict[tuple[str, str], Run]) -> str:
    fixed = [run for (shape, _), run in runs.items() if shape == name and run.is_static]
    if not fixed:
        return "not run"
    best = min(fixed, key=lambda run: (run.violating_minutes, run.replica_hours))
    return f"{best.autoscaler.split()[1]}: {best.violating_minutes}, {best.replica_hours:.2f} h"


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
