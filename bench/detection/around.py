"""How often the alerts beside the page were right: those of `--all-alerts`, and the ticket; and episodes for some.

An alert is right where what it is about held requests up when it began to fire, or had within 45 s. One of restarts is
right where the server had started again as often, as lately, as it says.

Episodes are here for alerts that read no engine's page: its log, sources that fail, thresholds of exporters and rules.
Lines go through the reader of log files, failures through the record of health that every source has, thresholds
through the reader of overrides; the series are those of the exporter's page. What looks alike is in half of them:
requests and answers that speak of failures, lines from before the exporter began, a vendor's library that was never
there, outages shorter than the alert's `for`, overrides that change nothing.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.detection.judge import Outcome
from bench.detection.prometheus import START, STEP_SECONDS, Sample, Server
from bench.detection.rules import CONTAINER_RESTARTS, EXPORTER, Firing, firing
from bench.detection.score import GRACE_SECONDS, KV, Second
from bench.detection.shipped import TICKET, Rule, others
from bench.detection.table import Table, percent
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


def episodes() -> list[Around]:
    """Return all: of logs, of sources, of thresholds."""
    return [*map(_log, SEEDS), *(_source(seed) for seed in SEEDS), *(_thresholds(seed) for seed in SEEDS)]


def scored(around: Sequence[Around], server: Server) -> tuple[dict[str, RightScore], dict[str, tuple[int, int]]]:
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
