"""Episodes for alerts that read no engine's page: its log, sources that fail, thresholds of exporters and rules.

Lines go through the reader of log files, failures through the record of health that every source has, thresholds
through the reader of overrides; the series are those of the exporter's page. What looks alike is in half of them:
requests and answers that speak of failures, lines from before the exporter began, a vendor's library that was never
there, outages shorter than the alert's `for`, overrides that change nothing.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.detection.all_alerts import RightScore
from bench.detection.prometheus import START, STEP_SECONDS, Sample, Server
from bench.detection.rules import EXPORTER, firing
from bench.detection.score import GRACE_SECONDS
from bench.detection.shipped import others
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition import Snapshot
from kvpressure.exposition.text import SnapshotCollector
from kvpressure.model.environment import ContainerId, Environment
from kvpressure.model.errors import TimedOutError
from kvpressure.net.guard import Health
from kvpressure.sources.gpu.backend import NOT_FOUND, BackendError
from kvpressure.sources.logs.follower import Follower
from kvpressure.sources.logs.pod_log import FileLog

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
