"""Six virtual hours in which engines, GPUs and settings come and go: what the exporter holds must stay flat."""

import asyncio
import contextlib
import gc
import itertools
import json
import os
import random
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvpressure.config.settings import Settings
from kvpressure.config.settings.keys import validate
from kvpressure.config.settings.load import Loaded
from kvpressure.config.thresholds import load_thresholds
from kvpressure.daemon.exporter import Daemon
from kvpressure.exposition import text
from kvpressure.model.samples import GpuReport, GpuSample, SourceHealth
from kvpressure.sources.source import OnReport, Source
from tests.soak.engines import TRUTHS, Engine
from tests.support.servers import FaultServer
from tests.support.virtual_time import LoopClock, run

HOURS = 6
SERVERS = 12
LISTED = 8
POLL_SECONDS = 5.0
REPLACE_SECONDS = 60
RELOAD_SECONDS = 600
SAMPLE_SECONDS = 300
GROWTH = 1.05
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Held:
    """What the process holds at one moment."""

    resident_mib: float
    descriptors: int
    threads: int
    tasks: int
    series: int
    kept: int


@dataclass
class Cards(Source):
    """GPUs of which one is exchanged every few minutes."""

    on_report: OnReport
    clock: LoopClock

    def health(self) -> tuple[SourceHealth, ...]:
        return (SourceHealth("nvml", "", True, self.clock.wall(), 0.01, self.clock.wall()),)

    async def run(self) -> None:
        for second in itertools.count():
            t = self.clock.wall()
            uuids = [f"GPU-{slot}-{(second + 40 * slot) // 300}" for slot in range(8)]
            gpus = (GpuSample(t, u, str(i), "nvidia", "H", "1", 6e10, 8e10, (0.4,) * 5) for i, u in enumerate(uuids))
            self.on_report("nvml", GpuReport(t, tuple(gpus)))
            await asyncio.sleep(1.0)


@dataclass
class Churn:
    """One run; `held` is one reading every `SAMPLE_SECONDS`."""

    held: list[Held] = field(default_factory=list)

    def problems(self) -> Iterator[str]:
        """Whatever grew between the second hour and the end, by more than a twentieth."""
        third = len(self.held) // 3
        early, late = self.held[third : 2 * third], self.held[2 * third :]
        for name in ("resident_mib", "descriptors", "threads", "tasks", "series", "kept"):
            before, after = (max(getattr(one, name) for one in part) for part in (early, late))
            if after > GROWTH * before + (1 if name != "resident_mib" else 0):
                yield f"{name} grew from {before:.1f} to {after:.1f}"


def churn(hours: float = HOURS, seed: int = 0) -> Churn:
    """Live through it."""
    return run(_churn(hours, random.Random(seed)))


async def _churn(hours: float, rng: random.Random) -> Churn:
    found, names = Churn(), itertools.count()
    async with contextlib.AsyncExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "engines.json"
        engines = [Engine(list(TRUTHS)[n % len(TRUTHS)], n, 0.05) for n in range(SERVERS)]
        servers = [await stack.enter_async_context(FaultServer(engine)) for engine in engines]
        listed = {server.url.removeprefix("http://"): f"pod-{next(names)}" for server in servers[:LISTED]}
        _write(file, listed)
        daemon = Daemon(Loaded(_settings(file, 0), load_thresholds()), _reloads(file), _cards, LoopClock())
        running = asyncio.create_task(daemon.run())
        for second in range(1, int(hours * 3600) + 1):
            await asyncio.sleep(1.0)
            if second % REPLACE_SECONDS == 0:
                listed.pop(rng.choice(list(listed)))
                free = [url for s in servers if (url := s.url.removeprefix("http://")) not in listed]
                listed[rng.choice(free)] = f"pod-{next(names)}"
                _write(file, listed)
            if second % RELOAD_SECONDS == 0:
                daemon.request_reload()
            if second % SAMPLE_SECONDS == 0:
                for server in servers:
                    server.requests.clear()  # the test's own, not the exporter's
                found.held.append(_held(daemon))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return found


def _cards(_: Settings, on_report: OnReport) -> list[Cards]:
    return [Cards(on_report, LoopClock())]


def _write(file: Path, listed: dict[str, str]) -> None:
    groups = [{"targets": [url], "labels": {"namespace": "chat", "pod": pod}} for url, pod in listed.items()]
    file.with_suffix(".new").write_text(json.dumps(groups))
    file.with_suffix(".new").rename(file)


def _settings(file: Path, number: int) -> Settings:
    return validate(
        Settings,
        {
            "engines": {"file_sd": [{"files": [file]}]},
            "poll": {"interval_seconds": POLL_SECONDS},
            "host": {"enabled": False},
            "limits": {"max_engines": 400 + number % 2},
        },
    )


def _reloads(file: Path):  # type: ignore[no-untyped-def]
    counter = itertools.count(1)
    return lambda: _settings(file, next(counter))


def _held(daemon: Daemon) -> Held:
    gc.collect()
    pipeline = daemon._feeds.pipeline
    page = text.render(daemon.snapshot(), openmetrics=False)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 2**20
    kept = (
        pipeline._engines,
        pipeline._gpus,
        pipeline._last_page,
        pipeline._starts._started,
        pipeline._starts._restarts,
    )
    past = daemon._histories
    return Held(
        resident,
        len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - the directory lists itself
        threading.active_count(),
        len(asyncio.all_tasks()),
        sum(not line.startswith(b"#") for line in page.splitlines()),
        sum(map(len, (*kept, past._engines, past._gpus, daemon._feeds.fleet._before, daemon._health_log._states))),
    )
