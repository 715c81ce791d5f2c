"""`python -m bench.uneven`: how many of the minutes in which replicas are uneven are told, and how many others.

Replicas of vLLM's own scheduler (tests/lab) behind four routers; twenty minutes of CPU. What was true in each minute is
judged beside what the rules as shipped said of it in promtool. `--write-docs` writes the tables of
docs/internals/accuracy/fleet.md.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final

import yaml

from bench.detection.table import Table, percent
from bench.scaling.replica import BEST, ROUTERS
from bench.scaling.worker import LAB, kept_answers
from bench.uneven.play import HELD_OUT, MINUTES, POLL_SECONDS, SCRAPE_POLLS, TRAFFIC, Waits
from bench.written import write_part
from kvpressure.bundle import Options, load_rules
from kvpressure.bundle.options import EXPORTER, VLLM_ONLY, Flavour
from kvpressure.config.thresholds import load_thresholds

HALF: Final = 0.5
WORSE_SECONDS: Final = 1.0
AT: Final = 0.95
FOR_MINUTES: Final = 10
"""The alert's `for`."""
LATE_MINUTES: Final = 3
"""What was true may be told so long after: the expression is a mean of three minutes."""
ALERTS: Final[Mapping[str, tuple[Flavour, str]]] = {
    "KVPressureReplicasUneven": (EXPORTER, "kvpressure-uneven kvpressure-replicas-uneven"),
    "KVPressureVLLMReplicasUneven": (
        VLLM_ONLY,
        "kvpressure-vllm-engine kvpressure-vllm-uneven kvpressure-vllm-replicas-uneven",
    ),
}
TOLD: Final = "workload:{}_overflow_fits:ratio >= {}"
_GOT: Final = re.compile(r'namespace="([\w-]+)"')
_FAILED: Final = re.compile(r'expr: "([^"\n]*)[^\n]*?time: (\w+)')


def uneven(waits: Sequence[Waits], fitting: Sequence[Waits], *, present: bool = False) -> list[bool]:
    """By minute: whether the same requests wait half as long or less where they fit, and a second less at p95.

    A minute's requests are those that came in it; `present` adds those that still waited in it.
    """
    return [_halves(waits, fitting, 60.0 * minute, present=present) for minute in range(MINUTES)]


def _halves(waits: Sequence[Waits], fitting: Sequence[Waits], begin: float, *, present: bool) -> bool:
    chosen = [
        at
        for at, (arrived, spans) in enumerate(waits)
        if begin <= arrived < begin + 60 or (present and any(a < begin + 60 and b > begin for a, b in spans))
    ]
    given, fits = ([sum(b - a for a, b in run[at][1]) for at in chosen] for run in (waits, fitting))
    return bool(given) and mean(fits) <= HALF * mean(given) and _p95(given) - _p95(fits) >= WORSE_SECONDS


def _p95(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(AT * (len(seconds) - 1))]


def said(alert: str, runs: Iterable[Mapping[str, Any]]) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """By episode: the minutes at whose end the series that the alert asks for tells it, and those at which it fires."""
    flavour, names = ALERTS[alert]
    options = Options(thresholds := load_thresholds(), flavour=flavour, selector=flavour.selector)
    groups = [group for file in load_rules(options) for group in file.groups if group["name"] in names.split()]
    told = TOLD.format("kvpressure" if flavour is EXPORTER else "vllm", thresholds.alert.uneven_fits_min_ratio)
    asked = (told, f'ALERTS{{alertname="{alert}",alertstate="firing"}}')
    series = [{"series": key, "values": " ".join(got)} for run in runs for key, got in run["series"].items()]
    wanted = "kvpressure_" if flavour is EXPORTER else "vllm:"
    test = {
        "interval": f"{round(POLL_SECONDS * SCRAPE_POLLS)}s",
        "input_series": [one for one in series if one["series"].startswith(wanted)],
        "promql_expr_test": [
            {"expr": expr, "eval_time": f"{minute}m", "exp_samples": []}
            for minute in range(1, MINUTES)
            for expr in asked
        ],
    }
    with tempfile.TemporaryDirectory(prefix="uneven-") as folder:
        rules, tests = Path(folder) / "rules.yaml", Path(folder) / "tests.yaml"
        rules.write_text(yaml.safe_dump({"groups": groups}))
        order = [group["name"] for group in groups]
        about = {"rule_files": [str(rules)], "evaluation_interval": "15s", "group_eval_order": order, "tests": [test]}
        tests.write_text(yaml.safe_dump(about))
        done = subprocess.run(["promtool", "test", "rules", str(tests)], capture_output=True, text=True, check=False)
    return _minutes(done.stdout + done.stderr)


def _minutes(text: str) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """What promtool got where none was expected. RuntimeError where it says anything else."""
    found: tuple[dict[str, set[int]], dict[str, set[int]]] = ({}, {})
    for part in re.split(r"\n(?=\s*expr: )", text)[1:]:
        head = _FAILED.search(part)
        if head is None or "err:" in part:
            raise RuntimeError(part[:500])
        which = found[1] if head[1].startswith("ALERTS") else found[0]
        hours, _, minutes = head[2].rpartition("h")
        for episode in _GOT.findall(part):
            which.setdefault(episode, set()).add(60 * int(hours or 0) + int(minutes.partition("m")[0]))
    if not text.startswith("Unit Testing"):
        raise RuntimeError(text[:500])
    return found


def owed(true: Sequence[bool], minute: int) -> bool | None:
    """Whether the alert must fire at the end of this minute: true since its `for`, or false; None where it may."""
    since = true[max(0, minute - FOR_MINUTES - LATE_MINUTES) : minute + 1]
    if all(since) and len(since) > FOR_MINUTES:
        return True
    return None if any(since) else False


def at_edge(true: Sequence[bool], minute: int) -> bool:
    """Whether this minute is the first or the last of those that are alike."""
    return len({*true[max(0, minute - 1) : minute + 2]}) > 1


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
