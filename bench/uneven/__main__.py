"""`python -m bench.uneven`: how many of the minutes in which replicas are uneven are told, and how many others.

Replicas of vLLM's own scheduler (tests/lab) behind four routers; twenty minutes of CPU. `--write-docs` writes the
tables of docs/internals/accuracy/fleet.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.detection.table import Table, percent
from bench.scaling.routers import BEST, ROUTERS
from bench.scaling.worker import LAB, kept_answers
from bench.uneven.judge import ALERTS, at_edge, owed, said, uneven
from bench.uneven.play import HELD_OUT, MINUTES, TRAFFIC
from bench.written import write_part

RUNS: Final = LAB / "uneven" / "runs.jsonl"
KNOWN: Final = range(len(TRAFFIC))
UNSEEN: Final = range(len(TRAFFIC), len(TRAFFIC) + len(HELD_OUT))
Judged = tuple[bool | None, bool]
"""Whether a minute was uneven, and whether it was told."""
Run = Mapping[str, Any]
"""Traffic and router, `waits` and `series`; of the one that goes where it fits the `episode` is empty."""


def main() -> int:
    """Play, ask, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.uneven", description=__doc__)
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--keep", action="store_true", help="play nothing that was played before")
    parser.add_argument("--known", action="store_true", help="leave out the traffic that is held out")
    given = parser.parse_args()
    parts = {"Traffic on which the rules were mended": KNOWN}
    if not given.known:
        parts["Traffic that was held out"] = UNSEEN
    if not given.keep:
        RUNS.unlink(missing_ok=True)
    numbers = [number for part in parts.values() for number in part]
    wishes = [_wish(number, router) for number in numbers for router in (BEST, *ROUTERS)]
    runs = kept_answers("bench.uneven.play", wishes, RUNS)
    shown = (_table(title, [run for run in runs if run["traffic"] in part]) for title, part in parts.items())
    text = "\n\n".join(table.markdown() for table in shown)
    print(text)
    if given.write_docs:
        write_part("fleet.md", "bench.uneven", text)
    return 0


def _wish(traffic: int, router: str) -> dict[str, Any]:
    turn = tuple(ROUTERS).index(router) if router != BEST else None
    return {"traffic": traffic, "router": router, "episode": "" if turn is None else f"t{traffic}-r{turn}"}


def _table(title: str, runs: Sequence[Run]) -> Table:
    """A row for each traffic and router: the share told, and of the others the share invented; then the sums."""
    fitting = {run["traffic"]: run["waits"] for run in runs if run["router"] == BEST}
    routed = [run for run in runs if run["router"] != BEST]
    rows = {run["episode"]: [(*TRAFFIC, *HELD_OUT)[run["traffic"]].name, run["router"]] for run in routed}
    sums = [
        ["**all**", ""],
        ["**all, without first and last minutes**", ""],
        ["**all, with those who still wait**", ""],
    ]
    for alert in ALERTS:
        for firing, found in enumerate(said(alert, routed)):
            totals = [Counter[Judged]() for _ in sums]
            for run in routed:
                minutes = found.get(run["episode"], set())
                by_arrival, by_presence = (
                    uneven(run["waits"], fitting[run["traffic"]], present=present) for present in (False, True)
                )
                judged, present = (
                    [
                        (owed(was, minute) if firing else was[minute], minute + 1 in minutes)
                        for minute in range(MINUTES - 1)
                    ]
                    for was in (by_arrival, by_presence)
                )
                inner = [one for minute, one in enumerate(judged) if not at_edge(by_arrival, minute)]
                rows[run["episode"]].append(_cell(Counter(judged)))
                for total, some in zip(totals, (judged, inner, present), strict=True):
                    total.update(some)
            for line, total in zip(sums, totals, strict=True):
                line.append(_cell(total))
    head = ("traffic", "router", *(f"`{alert}`, {what}" for alert in ALERTS for what in ("minutes", "firing")))
    return Table(title, head, tuple(map(tuple, [*rows.values(), *sums])))


def _cell(count: Counter[Judged]) -> str:
    """Both shares, with what they are of; what need not be told either way counts as neither."""
    return ", ".join(_share(count[true, True], count[true, True] + count[true, False]) for true in (True, False))


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({percent(part / whole)})" if whole else "-"


if __name__ == "__main__":
    sys.exit(main())
