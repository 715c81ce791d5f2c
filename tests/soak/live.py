"""The exporter as a process, in real time: 64 engines, of which some come and go, GPUs in a child, reloads."""

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import yaml

from bench import world
from bench.bench_run import get_ms
from tests.stubs.build import libraries
from tests.stubs.world import nvidia
from tests.support.processes import free_port

ENGINES = 64
CHURNING = 8
WARM_UP_SECONDS = 120
STEP_SECONDS = 10
RELOAD_EVERY = 3
GROWTH = 1.05


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the process and its children."""

    resident_mib: float
    descriptors: int
    threads: int
    processes: int
    scrape_ms: float


@dataclass
class Live:
    """One run."""

    readings: list[Reading] = field(default_factory=list)
    log: str = ""

    def problems(self) -> Iterator[str]:
        """What grew over the run, and anything that went wrong loudly."""
        half = len(self.readings) // 2
        for name in ("resident_mib", "descriptors", "threads", "processes"):
            early, late = (
                median(getattr(one, name) for one in part) for part in (self.readings[:half], self.readings[half:])
            )
            if late > GROWTH * early + (2 if name != "resident_mib" else 0):
                yield f"{name} grew from {early:.1f} to {late:.1f}"
        if "Traceback" in self.log or "internal" in self.log:
            yield "the log holds a traceback or an internal error"


def live(minutes: float, seed: int = 0) -> Live:
    """Watch it for so long."""
    seen = Live()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines = stack.enter_context(world.engines())
        port = free_port()
        config, file = directory / "kvpressure.yaml", directory / "engines.json"
        rng, generation = random.Random(seed), [0] * CHURNING
        _list(file, engines, generation)
        config.write_text(yaml.safe_dump(_settings(port, file, engines)))
        scenario = directory / "gpus.txt"
        scenario.write_text("".join(f"{key} {value}\n" for key, value in nvidia(8).items()))
        env = {"STUB_SCENARIO": str(scenario), "LD_LIBRARY_PATH": str(libraries())}
        command = (sys.executable, "-m", "kvpressure", "run", "--config.file", str(config))
        pid = stack.enter_context(world.process(*command, env=env, log=directory / "log"))
        world.wait_for(port)
        exporter = world.Exporter(pid, port)
        time.sleep(WARM_UP_SECONDS)
        for step in range(int(minutes * 60 / STEP_SECONDS)):
            time.sleep(STEP_SECONDS)
            generation[rng.randrange(CHURNING)] += 1
            _list(file, engines, generation)
            if step % RELOAD_EVERY == 0:
                os.kill(pid, signal.SIGHUP)
            seen.readings.append(_look(exporter))
        seen.log = (directory / "log").read_text()
    return seen


def _settings(port: int, file: Path, engines: int) -> dict[str, object]:
    fixed = [
        {"name": f"engine-{i}", "url": f"http://127.0.0.1:{engines}", "path": f"/{i}/metrics", "gpus": [i % 8]}
        for i in range(ENGINES - CHURNING)
    ]
    return {
        "web": {"listen_address": f"127.0.0.1:{port}"},
        "engines": {"targets": fixed, "file_sd": [{"files": [str(file)], "refresh_seconds": 1}]},
        "gpu": {"vendors": ["nvidia"]},
        "long_window_seconds": 60,  # full within the warm-up, so that what grows afterwards is a leak
    }


def _list(file: Path, engines: int, generation: list[int]) -> None:
    groups = [
        {
            "targets": [f"127.0.0.1:{engines}"],
            "labels": {
                "namespace": "chat",
                "pod": f"pod-{slot}-{number}",
                "__metrics_path__": f"/c{slot}-{number}/metrics",
            },
        }
        for slot, number in enumerate(generation)
    ]
    file.with_suffix(".new").write_text(json.dumps(groups))
    file.with_suffix(".new").rename(file)


def _look(exporter: world.Exporter) -> Reading:
    pids = exporter.pids()
    descriptors = threads = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
            threads += len(list(Path(f"/proc/{pid}/task").iterdir()))
    return Reading(exporter.resident_bytes() / 2**20, descriptors, threads, len(pids), get_ms(exporter.port))
