"""`python -m bench.uneven`: how many of the minutes in which replicas are uneven are told, and how many others.

Four replicas of vLLM's own scheduler (tests/lab) behind four routers; ten minutes of CPU. `--write-docs` writes the
tables of docs/internals/accuracy/fleet.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.detection.table import Table, percent
from bench.uneven.judge import ALERTS, MINUTES, owed, said, uneven
from tests.lab.fetch import NEWEST, fetch

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs" / "internals" / "accuracy" / "fleet.md"
MARK: Final = "<!-- python -m bench.uneven --write-docs -->"


@dataclass(slots=True)
class Count:
    """Minutes that were uneven and that were not, and how many of each were told."""

    uneven: int = 0
    told: int = 0
    other: int = 0
    invented: int = 0

    def add(self, true: bool | None, said_so: bool) -> None:
        """Count a minute; None counts as neither."""
        self.uneven += true is True
        self.told += true is True and said_so
        self.other += true is False
        self.invented += true is False and said_so

    def cell(self) -> str:
        """Both shares, with what they are of."""
        return f"{_share(self.told, self.uneven)}, {_share(self.invented, self.other)}"


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({percent(part / whole)})" if whole else "-"


def main() -> int:
    """Play, ask, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.uneven", description=__doc__)
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--runs", type=Path, nargs="*", help="lines that bench.uneven.worker has written: play nothing")
    given = parser.parse_args()
    if given.runs:
        runs = [json.loads(line) for path in given.runs for line in path.read_text().splitlines()]
    else:
        fetch(NEWEST)
        runs = _played()
    text = "\n\n".join(table.markdown() for table in tables(runs))
    print(text)
    if given.write_docs:
        before, _, after = DOCS.read_text().split(MARK)
        DOCS.write_text(f"{before}{MARK}\n{text}\n{MARK}{after}")
    return 0


def _played() -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "bench.uneven.worker"]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def tables(runs: Sequence[dict[str, Any]]) -> Iterable[Table]:
    """A row for each traffic and router: the share told, and of the others the share invented; then the sums."""
    fitting = {run["traffic"]: run["waits"] for run in runs if not run["episode"]}
    routed = [run for run in runs if run["episode"]]
    true = {run["episode"]: uneven(run["waits"], fitting[run["traffic"]]) for run in routed}
    rows: dict[str, list[str]] = {run["episode"]: [run["traffic"], run["router"]] for run in routed}
    sums = ["**all**", ""]
    for alert in ALERTS:
        for at, minutes in enumerate(said(alert, routed)):
            everything = Count()
            for episode, was in true.items():
                count, found = Count(), minutes.get(episode, set())
                for minute in range(MINUTES - 1):
                    right = owed(was, minute) if at else was[minute]
                    count.add(right, minute + 1 in found)
                    everything.add(right, minute + 1 in found)
                rows[episode].append(count.cell())
            sums.append(everything.cell())
    head = ("traffic", "router", *(f"`{alert}`, {what}" for alert in ALERTS for what in ("minutes", "firing")))
    yield Table("Uneven replicas", head, tuple(map(tuple, [*rows.values(), sums])))


if __name__ == "__main__":
    sys.exit(main())
