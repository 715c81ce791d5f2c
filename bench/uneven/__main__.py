"""`python -m bench.uneven`: how many of the minutes in which replicas are uneven are told, and how many others.

Requests go through one of four routers to replicas of vLLM's own scheduler (tests/lab), of which there are the series
that a Prometheus would have; twenty minutes of CPU. What comes when, and which replica is slower, is drawn from a seed,
the same for every router. What was true in each minute is judged beside what the rules as shipped said of it in
promtool. `--write-docs` writes the tables of docs/internals/accuracy/fleet.md.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, Final

import yaml

from bench.detection.shipped import named_by
from bench.detection.table import Table, percent
from bench.scaling.replica import BEST, ROUTERS, Replicas, Router, where_it_fits
from bench.scaling.shapes import FLAGS, Kind, Rate, Shape, flat, steps
from bench.scaling.worker import LAB, kept_answers
from bench.written import write_part
from kvpressure.bundle import Options, load_rules
from kvpressure.bundle.options import EXPORTER, VLLM_ONLY, Flavour
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.exposition import Snapshot
from kvpressure.exposition.text import SnapshotCollector
from kvpressure.model.environment import DeclaredLimit
from kvpressure.runtimes.vllm.metrics import ALL_NAMES, POLL_NAMES
from tests.lab.clock import BEGIN, Clock

MINUTES: Final = 40
SKEWED: Final = (600, 1800)
"""What makes traffic skewed lasts from one to the other; a slower card is slower all the time."""
LONG_PROMPT: Final = 14_000
LONG_EVERY_SECONDS: Final = 75
CACHING: Final = {"enable_prefix_caching": True}


def _chat(rate: float) -> Kind:
    """Of 200 sessions that have little in common."""
    return Kind(flat(rate), (500, 1300), (20, 48), sessions=(100, 299), shared=300)


def _hot(rate: float) -> Kind:
    """Of one session that sends many requests."""
    return Kind(_skewed(rate), (900, 1300), (20, 48), sessions=(3, 3), shared=800)


def _long(session: int) -> Kind:
    """Of one session that has a long context."""
    rate = _skewed(1 / LONG_EVERY_SECONDS)
    return Kind(rate, (LONG_PROMPT, LONG_PROMPT), (150, 150), (session, session), LONG_PROMPT - 500)


def _skewed(rate: float) -> Rate:
    return steps((0, 0.0), (SKEWED[0], rate), (SKEWED[1], 0.0))


def _shape(name: str, *kinds: Kind, slower: Mapping[int, float] | None = None, replicas: int = 4) -> Shape:
    return Shape(name, "", kinds, CACHING, seconds=60 * MINUTES, replicas=replicas, slower=slower or {})


TRAFFIC: Final = (
    _shape("equal", _chat(2.0)),
    _shape("equal, nearly full", _chat(3.2)),
    _shape("equal, too much", _chat(4.8)),
    _shape("two long contexts", _chat(1.6), _long(4), _long(8)),
    _shape("two long contexts, busy", _chat(2.4), _long(4), _long(8)),
    _shape("one hot session", _chat(1.2), _hot(1.2)),
    _shape("one hot session, busy", _chat(1.6), _hot(1.8)),
    _shape("a slower card", _chat(1.6), slower={3: 2.5}),
    _shape("a slower card, busy", _chat(2.4), slower={3: 2.5}),
)
_DOCUMENTS: Final = Kind(
    steps((0, 0.05), (500, 0.45), (900, 0.1), (1300, 0.6), (1900, 0.05)), (2500, 5500), (40, 70), (10, 21), 2000
)
HELD_OUT: Final = (
    *(replace(shape, seed=49) for shape in TRAFFIC),
    _shape("documents in waves, six replicas", _chat(2.6), _DOCUMENTS, replicas=6),
)
"""Run once, when the rules were done: a seed, a kind of traffic and a number of replicas that they had not seen."""


POLL_SECONDS: Final = 2.5
"""The exporter polls every second; a window of 20 s has the eight polls that a verdict needs at this pace too."""
SCRAPE_POLLS: Final = 6
LIMITS: Final = ("max_num_seqs", "max_num_batched_tokens")
_ROW: Final = re.compile(r"^(vllm:\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
Waits = tuple[float, Sequence[tuple[float, float]]]
Series = dict[str, list[str]]
"""By name and labels, a value a scrape; `_` where there is none."""


class Played(Replicas):
    """`series` stays empty without the `name` of an episode."""

    def __init__(self, traffic: Shape, router: Router, clock: Clock, name: str = "") -> None:
        super().__init__(traffic, router, clock)
        self._name, self._polls, self.series = name, 0, Series()
        self._pipeline = Pipeline(PipelineSettings(), load_thresholds())
        self._readers = [PageReader() for _ in range(traffic.replicas)]
        for _ in self._readers:
            self.start()
        if name:
            self.events.at(BEGIN + POLL_SECONDS, self._poll)

    def waits(self) -> list[Waits]:
        """Of each request the second in which it came, and those from and until which it waited."""
        now = self._clock.now
        still = ([*one.waits, *([] if one.waits_since is None else [(one.waits_since, now)])] for one in self.requests)
        times = ([(begin - BEGIN, end - BEGIN) for begin, end in spans] for spans in still)
        return [(one.arrived - BEGIN, spans) for one, spans in zip(self.requests, times, strict=True)]

    def _poll(self) -> None:
        now, scrape = self._clock.now, self._polls % SCRAPE_POLLS == 0
        limits = tuple(DeclaredLimit(name, FLAGS[name], name) for name in LIMITS)
        for one, reader in zip(self.replicas, self._readers, strict=True):
            pod = f"vllm-7c9d8b5f6-{'abcdef'[one.number] * 5}"
            page = one.page(ALL_NAMES if scrape else POLL_NAMES)
            target = Target(f"{self._name}/{pod}:8000", namespace=self._name, pod=pod, limits=limits)
            self._pipeline.on_page(target, reader.read(page, now))
            if scrape:
                place = f'job="vllm",instance="{pod}.{self._name}:8000",namespace="{self._name}",pod="{pod}"'
                for name, labels, value in _ROW.findall(page.decode()):
                    if name in named_by(VLLM_ONLY):
                        self._note(f"{name}{{{place},{labels}}}", float(value))
        self._pipeline.expire(now)
        if scrape:
            for metric in SnapshotCollector(Snapshot(now, self._pipeline.engine_views(now))).collect():
                for sample in metric.samples:
                    if sample.name in named_by(EXPORTER):
                        shown = ",".join(f'{key}="{value}"' for key, value in sample.labels.items() if value)
                        self._note(f'{sample.name}{{job="kvpressure",instance="node:10405",{shown}}}', sample.value)
        self._polls += 1
        self.events.at(now + POLL_SECONDS, self._poll)

    def _note(self, series: str, value: float) -> None:
        values = self.series.setdefault(series, [])
        values += ["_"] * (self._polls // SCRAPE_POLLS - len(values)) + [f"{value:.6g}"]


def answer(wish: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Run the traffic of a wish, a place among all, through its `router`; its series are those of its `episode`."""
    made = ROUTERS.get(wish["router"], where_it_fits)
    run = Played((*TRAFFIC, *HELD_OUT)[wish["traffic"]], made(), clock, wish["episode"])
    run.run()
    return {**wish, "waits": run.waits(), "series": run.series}


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
    runs = kept_answers("bench.uneven.__main__", wishes, RUNS)
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
