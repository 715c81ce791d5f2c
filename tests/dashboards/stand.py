"""The demo and a page with everything else, under Debian's Prometheus with the committed rules."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tests.dashboards.everything import LABELS, serving
from tests.dashboards.grafana import Prometheus
from tests.support.alerting import with_our_rules
from tests.support.processes import KVPRESSURE, Process, eventually, free_port, get, running
from tests.support.watching import PHASE

SCRAPE_SECONDS = 5
PATIENCE_SECONDS = 480.0


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the demo, from `start` to `end` (unix seconds)."""

    name: str
    start: float
    end: float


@contextlib.asynccontextmanager
async def prometheus(directory: Path, targets: dict[str, dict[str, str]]) -> AsyncIterator[Prometheus]:
    """A Prometheus that scrapes `targets`: host:port to labels."""
    configs = [{"targets": [address], "labels": labels} for address, labels in targets.items()]
    settings = {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s"},
        "scrape_configs": [{"job_name": "kvpressure", "static_configs": configs}],
    }
    async with with_our_rules(directory, settings) as url:
        yield Prometheus(url, SCRAPE_SECONDS)


@contextlib.asynccontextmanager
async def incident(directory: Path) -> AsyncIterator[tuple[Prometheus, list[Phase]]]:
    """Live through the demo's incident; gives the server that has seen it and its phases."""
    address = f"127.0.0.1:{free_port()}"
    command = [*KVPRESSURE, "demo", f"--web.listen-address={address}"]
    async with contextlib.AsyncExitStack() as stack:
        more = await stack.enter_async_context(serving())
        log = directory / "demo.log"
        demo = await stack.enter_async_context(running(command, log, {"PYTHONUNBUFFERED": "1"}))
        await eventually(lambda: get(f"http://{address}/-/healthy"), demo)
        server = await stack.enter_async_context(prometheus(directory, {address: {}, more: LABELS}))
        yield server, await _phases(demo)


async def _phases(demo: Process) -> list[Phase]:
    began: list[tuple[str, float]] = []
    give_up = time.monotonic() + PATIENCE_SECONDS
    while "The incident is over" not in demo.output():
        assert time.monotonic() < give_up, demo.output()[-2000:]
        assert demo.process.returncode is None, demo.output()
        began += [(name, time.time()) for name, _ in PHASE.findall(demo.output())[len(began) :]]
        await asyncio.sleep(0.5)
    ends = [start for _, start in began[1:]] + [time.time()]
    return [Phase(name, start, end) for (name, start), end in zip(began, ends, strict=True)]
