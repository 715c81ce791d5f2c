"""`python -m bench.detection.paging [FOLDER ...]`: what wakes people, against the time in which they suffer.

Counted are true stretches of KV pressure of two minutes and more, by what the scheduler did, on episodes of the
simulator and on recordings of the scheduler lab in the folders. Every engine is the only replica of its model; in the
lab the exporter starts with the pressure and knows no healthy time. Expressions come from the bundle and are evaluated
by a real Prometheus. `--write-docs` writes the part of detection.md, pages.json, and how often each other alert was
right (rules/rights.json, for the page of alerts; episodes of half an hour count there).

Of the alerts beside the page, those of `--all-alerts` and the ticket, it is told how often they were right. An alert is
right where what it is about held requests up when it began to fire, or had within 45 s. One of restarts is right where
the server had started again as often, as lately, as it says.

Other episodes are for alerts that read no engine's page: its log, sources that fail, thresholds of exporters and rules.
Lines go through the reader of log files, failures through the record of health that every source has, thresholds
through the reader of overrides; the series are those of the exporter's page. What looks alike is in half of them:
requests and answers that speak of failures, lines from before the exporter began, a vendor's library that was never
there, outages shorter than the alert's `for`, overrides that change nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Final

from bench.detection import lab, prometheus
from bench.detection.__main__ import judged
from bench.detection.episodes import long_specs, specs
from bench.detection.judge import Outcome
from bench.detection.prometheus import START, STEP_SECONDS, Sample, Server
from bench.detection.rules import CONTAINER_RESTARTS, EXPORTER, INTERVALS, Firing, firing, samples
from bench.detection.score import GRACE_SECONDS, KV, Second, pressures
from bench.detection.shipped import SUFFERED, TICKET, Rule, others, shipped, ticket
from bench.detection.table import Table, number, percent
from bench.written import write_part
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition import Snapshot
from kvpressure.exposition.text import SnapshotCollector
from kvpressure.model.environment import ContainerId, Environment
from kvpressure.model.errors import TimedOutError
from kvpressure.net.guard import Health
from kvpressure.sources.gpu.backend import NOT_FOUND, BackendError
from kvpressure.sources.logs.follower import Follower
from kvpressure.sources.logs.pod_log import FileLog

RIGHTS: Final = Path(__file__).parents[2] / "rules" / "rights.json"
"""How often each was right, for the page of alerts: by alert, where and [right, of how many]."""
HELD_UP: Final = frozenset({"concurrency_bound", "compute_bound", "host_bound", "deferred"})
TROUBLE: Final = HELD_UP | {KV, "stuck"}
ABOUT: Final = {
    TICKET: HELD_UP,
    "KVPressureEngineComputeBound": frozenset({"compute_bound"}),
    "KVPressureEngineDeferred": frozenset({"deferred"}),
    "KVPressureEngineHostBound": frozenset({"host_bound"}),
    "KVPressureSequenceCapReached": frozenset({"concurrency_bound"}),
    "KVPressureSLOBurn": frozenset({KV}),
}
"""What has to be true where an alert fires; any trouble for one that is not named."""
RESTARTING: Final = "KVPressureEngineRestarting"
KUBERNETES_SECONDS, EXPORTER_SECONDS = 900.0, 600.0
"""How far the two rules of restarts look back."""


@dataclass(slots=True)
class RightScore:
    """How often an alert began to fire, at how many evaluations it fired, and of each how many were right."""

    alerts: int = 0
    right: int = 0
    evaluations: int = 0
    right_evaluations: int = 0

    def add(self, rule: Rule, outcome: Outcome, fired: Firing, track: Sequence[Second]) -> None:
        """Count one engine."""
        self.count(fired, right_seconds(rule, outcome, track), int(track[-1].t - track[0].t))

    def count(self, fired: Firing, truth: Collection[int], last: int) -> None:
        """Count one that fired so, and may in the seconds of `truth`, of which `last` is the last that is known."""
        begins, holds = ([int(t) in truth for t in times if t <= last] for times in (begins_of(fired), fired.holds))
        self.alerts, self.right = self.alerts + len(begins), self.right + sum(begins)
        self.evaluations += len(holds)
        self.right_evaluations += sum(holds)


def begins_of(fired: Firing) -> Iterable[float]:
    """When it begins to fire, each time anew."""
    shown = sorted({*fired.holds, *fired.kept})
    return [t for before, t in zip([float("-inf"), *shown], shown, strict=False) if t - before > 20.0]


def right_seconds(rule: Rule, outcome: Outcome, track: Sequence[Second]) -> Collection[int]:
    """The seconds after the first poll at which that alert may fire."""
    alert, grace = rule.name.partition(" ")[0], range(int(GRACE_SECONDS))
    if alert == RESTARTING:
        return _restarted(rule, outcome, int(track[-1].t - track[0].t) + 1)
    about = ABOUT.get(alert, TROUBLE)
    return {int(one.t - track[0].t) + late for one in track if one.accepted & about for late in grace}


def _restarted(rule: Rule, outcome: Outcome, seconds: int) -> Collection[int]:
    """Where Kubernetes counted a restart in a quarter of an hour, or the server started often in ten minutes.

    Kubernetes counts containers that start again in their pod, and none of a pod that was replaced.
    """
    if CONTAINER_RESTARTS in rule.expr:
        back, least = KUBERNETES_SECONDS, 1
        times = [] if outcome.replaced else outcome.restarts
    else:
        back, least = EXPORTER_SECONDS, int(load_thresholds().symptoms.restarting_min_count)
        times = outcome.restarts
    # The counter is read at a scrape, at most a minute later.
    late = GRACE_SECONDS + 15.0
    return {t for t in range(seconds) if sum(0 <= t - at <= back + late for at in times) >= least}


def rights_table(name: str, rights: Mapping[str, RightScore]) -> Table:
    """A row per alert beside the page that fired at all."""
    head = ("alert", "right", "of alerts", "of the evaluations at which it fired")
    rows = tuple(
        (alert, str(one.right), str(one.alerts), percent(one.right_evaluations / one.evaluations))
        for alert, one in rights.items()
    )
    return Table(f"How often the other alerts were right, {name}", head, rows)


def write_rights(by_set: Mapping[str, Mapping[str, RightScore]]) -> None:
    """Write RIGHTS: how many of each alert's were right in each set in which it fired."""
    names = sorted({alert for rights in by_set.values() for alert in rights})
    found = {
        alert: {
            where: [rights[alert].right, rights[alert].alerts] for where, rights in by_set.items() if alert in rights
        }
        for alert in names
    }
    RIGHTS.write_text(json.dumps(found, indent=1) + "\n")


LOGS: Final = Path(__file__).parents[2] / "tests" / "fixtures" / "logs"
SECONDS: Final = 3600
SEEDS: Final = range(16)
OOM, NO_ROOM = "KVPressureDeviceOutOfMemory", "KVPressureAllocationErrorsInLogs"
SOURCE, DIFFER = "KVPressureSourceDown", "KVPressureThresholdsDiffer"
KINDS: Final = {OOM: "device_oom", NO_ROOM: "kv_exhausted"}
BACK_SECONDS: Final = {OOM: (0.0, 600.0), NO_ROOM: (0.0, 600.0), SOURCE: (900.0, 0.0), DIFFER: (1800.0, 0.0)}
"""What an alert says, which is taken at its word: for how long it has to be so, and for how long it is told after."""
RESTART_SECONDS: Final = 90.0


@dataclass(slots=True)
class Around:
    """One episode: a page every 15 s, and the steps at which what each alert is about is so."""

    name: str
    pages: list[Snapshot] = field(default_factory=list)
    true: dict[str, set[int]] = field(default_factory=dict)

    def samples(self) -> Iterator[Sample]:
        """Yield every sample of the pages as a Prometheus keeps them; each episode is an exporter of its own."""
        for snapshot in self.pages:
            for metric in SnapshotCollector(snapshot).collect():
                for one in metric.samples:
                    labels = {**EXPORTER, **one.labels, "episode": self.name, "instance": self.name}
                    given = {name: value for name, value in labels.items() if value}
                    yield Sample(one.name, given, snapshot.t - START, float(one.value))


def around_episodes() -> list[Around]:
    """Return all: of logs, of sources, of thresholds."""
    return [*map(_log, SEEDS), *(_source(seed) for seed in SEEDS), *(_thresholds(seed) for seed in SEEDS)]


def scored_around(around: Sequence[Around], server: Server) -> tuple[dict[str, RightScore], dict[str, tuple[int, int]]]:
    """Return how often each of the alerts was right, and in how many of the episodes with what it is about it fired."""
    rights: dict[str, RightScore] = {}
    found: dict[str, tuple[int, int]] = {}
    for rule in others():
        alert = rule.name.partition(" ")[0]
        if alert not in BACK_SECONDS:
            continue
        times = server.true_times(rule.expr, SECONDS)
        for one in around:
            fired = firing(times.get((one.name, "0"), []), rule.for_seconds, rule.keep_seconds)
            truth = _right(alert, one.true.get(alert, set()))
            if fired.holds:
                rights.setdefault(alert, RightScore()).count(fired, truth, SECONDS)
            did, of = found.get(alert, (0, 0))
            found[alert] = (did + bool(truth and set(map(int, fired.holds)) & truth), of + bool(truth))
    return rights, found


def _right(alert: str, steps: set[int]) -> set[int]:
    """Return the seconds at which it may fire: what it says has been so for long enough, or was lately."""
    needed, after = BACK_SECONDS[alert]
    found: set[int] = set()
    for step in steps:
        run = [step - back in steps for back in range(int(needed / STEP_SECONDS) + 1)]
        if all(run):
            begin = int(step * STEP_SECONDS)
            found |= set(range(begin, begin + int(after + GRACE_SECONDS) + 1))
    return found


def _steps() -> range:
    return range(int(SECONDS / STEP_SECONDS) + 1)


def _log(seed: int) -> Around:
    """A server's log: quiet, talkative, and in three of four episodes a failure now and then, of any kind."""
    rng, found = random.Random(f"log/{seed}"), Around(f"log-{seed}")
    chatter = (LOGS / "chatter.log").read_text().splitlines()
    rows = [line.partition("\t") for line in (LOGS / "failures.tsv").read_text().splitlines()]
    traceback = (LOGS / "v1-oom.log").read_text()
    wanted = ("device_oom", "kv_exhausted", "", "engine_dead")[seed % 4]
    failures = [text for kind, _, text in rows if kind == wanted]
    others_ = [text for kind, _, text in rows if kind not in KINDS.values()]
    at = {rng.randrange(60, 180) for _ in range(rng.randint(1, 3))} if wanted else set()
    rotated = rng.randrange(40, 200) if seed % 3 == 0 else -1
    with tempfile.TemporaryDirectory(prefix="around-") as folder:
        path = Path(folder) / "server.log"
        # What was there before the exporter began is shown, and counted as nothing new.
        path.write_text("INFO starting\n" + (traceback if seed % 2 else ""))
        follower = Follower(ContainerId("chat", f"vllm-{seed}", "vllm"), FileLog(path), START)
        for step in _steps():
            said = [rng.choice(chatter)]
            if rng.random() < 0.02:
                said.append(rng.choice(others_))
            if step in at:
                said.append(traceback if wanted == "device_oom" and rng.random() < 0.5 else rng.choice(failures))
                for alert, kind in KINDS.items():
                    if kind == wanted:
                        found.true.setdefault(alert, set()).add(step)
            if step == rotated:
                path.rename(path.with_suffix(".1"))
            with path.open("a") as file:
                file.writelines(line.rstrip("\n") + "\n" for line in said)
            t = START + step * STEP_SECONDS
            follower.read(1024 * 1024, t)
            report = follower.report()
            logs = {} if report is None else {report.id: report}
            found.pages.append(Snapshot(t, sources=(follower.health,), environment=Environment(logs=logs)))
        follower.close()
    return found


def _source(seed: int) -> Around:
    """A source that fails for a while, worked before or not; sometimes one that this machine does not have."""
    rng, found = random.Random(f"source/{seed}"), Around(f"source-{seed}")
    name = ("kubernetes", "nvml", "file_sd", "logs")[seed % 4]
    absent = name == "nvml" and seed % 8 == 1
    health, other = Health(name, "", START), Health("amdsmi", "", START)
    begin = 0 if absent or seed % 5 == 0 else rng.randrange(20, 60)
    lasts = rng.choice((8, 20, 40, 55)) if seed % 3 else rng.randrange(70, 140)
    for step in _steps():
        t, fails = START + step * STEP_SECONDS, absent or begin <= step < begin + lasts
        if fails:
            health.down(t, BackendError(NOT_FOUND, "no answer") if absent else TimedOutError("no answer"))
        else:
            health.up(t)
        other.down(t, BackendError(NOT_FOUND, "libamd_smi.so is not installed"))
        if fails and not absent:
            found.true.setdefault(SOURCE, set()).add(step)
        found.pages.append(Snapshot(t, sources=(health.latest, other.latest)))
    return found


def _thresholds(seed: int) -> Around:
    """An exporter with a file of thresholds: none, one that says the same in other words, a change for a while."""
    rng, found = random.Random(f"thresholds/{seed}"), Around(f"thresholds-{seed}")
    own = load_thresholds()
    key = rng.choice(sorted(name for name, value in own.values.items() if 0.2 < value < 0.8))
    texts = ("", f"# as shipped\n{key}: {own.values[key]:.6f}\n", f"{key}: {own.values[key] * 0.99:.6f}\n")
    lasts = rng.choice((20, 60, 100)) if seed % 2 else rng.randrange(130, 200)
    begin = rng.randrange(5, 30)
    hashes = [load_thresholds(text or None).hash for text in texts]
    for step in _steps():
        changed = begin <= step < begin + lasts
        word = (2 if seed % 4 else 1) if changed else 0
        if changed and seed % 4:
            found.true.setdefault(DIFFER, set()).add(step)
        info: Mapping[str, object] = {"thresholds_info": {hashes[word]: 1.0}}
        found.pages.append(Snapshot(START + step * STEP_SECONDS, exporter=info))
    return found


RESULTS: Final = Path(__file__).parent / "pages.json"
LAB: Final = "in the scheduler lab"
VARIED: Final = "on varied regimes"
SIMULATED: Final = "on the simulator and recordings"
LONG: Final = "on episodes of half an hour"
LAB_LONG: Final = "in the scheduler lab, for twenty minutes"
AROUND: Final = "on logs, sources and thresholds"
LONG_SECONDS: Final = 120.0
RIGHTS_ALONE: Final = (LONG, LAB_LONG)
"""Sets on which only the other alerts are scored, at one interval."""
AFTER_SECONDS: Final = 60.0
"""A page that begins within this long after the end tells of what is over."""


@dataclass(slots=True)
class PageScore:
    """How one severity did at one interval. `rows` has, per long stretch, its name, seconds, wait and delay."""

    rows: list[tuple[str, float, float | None, float | None]] = field(default_factory=list)
    firing: int = 0
    evaluations: int = 0
    late: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)

    @property
    def delays(self) -> list[float]:
        """Seconds from the onset, of the stretches that were told before they were over."""
        return [delay for *_, delay in self.rows if delay is not None]

    def add(self, name: str, fired: Firing, seconds: Sequence[Second], waits: Sequence[tuple[float, float]]) -> None:
        """Count one engine; `waits` are its drain times by seconds after its first poll."""
        begin, found = seconds[0].t, pressures(seconds)
        spans = [(one.onset - begin, one.end - begin) for one in found]
        for start, end in spans:
            if end - start < LONG_SECONDS:
                continue
            first = next((t for t in fired.holds if start <= t <= end), None)
            inside = [value for t, value in waits if start <= t <= end]
            self.rows.append((name, end - start, mean(inside) if inside else None, first and first - start))
            steps = int((end - start) // prometheus.STEP_SECONDS)
            self.evaluations += steps
            self.firing += min(steps, sum(start <= t <= end for t in fired.holds))
        possible = [second.t - begin for second in seconds if KV in second.accepted]
        last = seconds[-1].t - begin
        for t in begins_of(fired):
            # After the last page a sample is still looked back at, and nobody knows what is true.
            if t > last or any(start <= t <= end for start, end in spans):
                continue
            if any(end < t <= end + AFTER_SECONDS for _, end in spans):
                self.late.append(name)
            elif not any(t - GRACE_SECONDS <= at <= t for at in possible):
                self.false.append(name)


def scored(outcomes: Sequence[Outcome], seconds: int) -> tuple[dict[str, PageScore], dict[str, RightScore]]:
    """Scores of the alert by severity, and of every other alert on an engine that fired how often it was right."""
    found: dict[str, PageScore] = {}
    rights: dict[str, RightScore] = {}
    with prometheus.serving(samples(outcomes, seconds), seconds) as server:
        longest = max(scrape.t for outcome in outcomes for track in outcome.scrapes.values() for scrape in track)
        pages = shipped(seconds)
        for rule in (*pages, *ticket(seconds), *others(seconds)):
            times, alert = server.true_times(rule.expr, longest), rule.name.partition(" ")[0]
            for outcome in outcomes if times else ():
                for engine, track in outcome.seconds.items():
                    fired = firing(times.get((outcome.name, engine), []), rule.for_seconds, rule.keep_seconds)
                    if rule in pages:
                        score = found.setdefault(rule.name, PageScore())
                        score.add(outcome.name, fired, track, _waits(outcome, engine))
                    else:
                        rights.setdefault(alert, RightScore()).add(rule, outcome, fired, track)
    return found, {alert: score for alert, score in rights.items() if score.alerts}


def _waits(outcome: Outcome, engine: str) -> list[tuple[float, float]]:
    shown = ((scrape.t, one) for scrape in outcome.scrapes[engine] for one in scrape.shown)
    return [(t, one.value) for t, one in shown if one.name == SUFFERED]


def summary(name: str, scores: dict[int, dict[str, PageScore]]) -> Table:
    """A row per severity and interval."""
    head = ("alert, scrapes", "stretches", "fired in time", "delay s", "p90 s", "firing", "after the end", "false")
    rows = []
    for seconds, by_rule in scores.items():
        for rule, score in by_rule.items():
            delays = sorted(score.delays)
            rows.append(
                (
                    f"{rule}, {seconds} s",
                    str(len(score.rows)),
                    percent(len(delays) / len(score.rows) if score.rows else None),
                    number(median(delays) if delays else None),
                    number(delays[int(0.9 * (len(delays) - 1))] if delays else None),
                    percent(score.firing / score.evaluations if score.evaluations else None),
                    str(len(score.late)),
                    str(len(score.false)),
                )
            )
    return Table(f"Stretches of two minutes, {name}", head, tuple(rows))


def pages_table(name: str, scores: dict[int, dict[str, PageScore]], critical: str) -> Table:
    """A row per stretch: how long it was, what those who came waited, and after how long it paged."""
    head = ("episode", "lasted s", "wait s", *(f"page after s, {seconds} s" for seconds in scores))
    each = [score[critical].rows for score in scores.values()]
    rows = []
    for together in zip(*each, strict=True):
        told = tuple("missed" if delay is None else number(delay) for *_, delay in together)
        rows.append((together[0][0], number(together[0][1]), number(together[0][2]), *told))
    wrong = [
        (f"{one}: begun {what}", "", "", *(("yes" if seconds == at else "") for at in scores))
        for seconds, by_rule in scores.items()
        for what in ("late", "false")
        for one in getattr(by_rule[critical], what)
    ]
    return Table(f"Pages, {name}", head, (*rows, *wrong))


def told_table(told: Mapping[str, tuple[int, int]]) -> Table:
    """A row per alert: in how many of the episodes with what it is about it fired."""
    rows = tuple((alert, str(did), str(of)) for alert, (did, of) in told.items())
    return Table("Episodes with what the alert is about, and those in which it fired", ("alert", "fired", "of"), rows)


def result_rows(name: str, scores: dict[int, dict[str, PageScore]], critical: str) -> list[dict[str, object]]:
    """The critical alert's figures, for pages.json and the README."""
    return [
        {
            "episodes": name,
            "scrape_seconds": seconds,
            "stretches": len(score.rows),
            "told": len(score.delays),
            "delay_seconds": median(score.delays) if score.delays else None,
            "begun_after_the_end": len(score.late),
            "false": len(score.false),
        }
        for seconds, score in ((seconds, by_rule[critical]) for seconds, by_rule in scores.items())
    ]


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--varied", nargs="*", type=Path, default=[], help="recordings of varied regimes")
    parser.add_argument("--long", nargs="*", type=Path, default=[], help="recordings for alerts that take minutes")
    parser.add_argument("--only-lab", action="store_true", help="no episodes of the simulator")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    episodes = {} if options.only_lab else {SIMULATED: specs(), LONG: long_specs()}
    sets = {
        LAB: _recorded(options.folders, options.workers),
        VARIED: _recorded(options.varied, options.workers),
        **{name: judged(some, options.workers, each=0) for name, some in episodes.items()},
        LAB_LONG: _recorded(options.long, options.workers),
    }
    shown: list[Table] = []
    rows: list[dict[str, object]] = []
    rights: dict[str, dict[str, RightScore]] = {}
    critical = next(rule.name for rule in shipped() if "critical" in rule.name)
    for name, outcomes in sets.items():
        if not outcomes:
            continue
        each = {seconds: scored(outcomes, seconds) for seconds in ((15,) if name in RIGHTS_ALONE else INTERVALS)}
        scores = {seconds: found for seconds, (found, _) in each.items()}
        shown += [] if name in RIGHTS_ALONE else [summary(name, scores), pages_table(name, scores, critical)]
        rights[name] = each[15][1]
        shown.append(rights_table(name, rights[name]))
        rows += result_rows(f"{len(outcomes)} {name}", scores, critical) if name in {LAB, SIMULATED} else []
    if episodes:
        beside = around_episodes()
        with prometheus.serving(sample for one in beside for sample in one.samples()) as server:
            rights[AROUND], told = scored_around(beside, server)
        shown.append(rights_table(AROUND, rights[AROUND]))
        shown.append(told_table(told))
    for table in shown:
        print(table.text())
    if options.write_docs:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        write_rights(rights)
        write_part("detection.md", "bench.detection.paging", "\n".join(table.markdown() for table in shown))
    return 0


def _recorded(folders: Sequence[Path], workers: int) -> list[Outcome]:
    """The lab's recordings in these folders, judged."""
    paths = [path for folder in folders for path in lab.recordings(folder)]
    return [one.outcome for one in lab.all_judged(paths, workers)]


if __name__ == "__main__":
    sys.exit(main())
