"""Engines that stop answering, through a real Prometheus and Alertmanager, in real time (`make e2e`, ten minutes).

One is under KV cache pressure, one serves, one is idle; a fourth, under pressure too, is scaled away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.alerting import Delivery, Webhook, alertmanager, prometheus, webhook
from tests.support.exporting import exporter, write_config
from tests.support.processes import eventually, free_port, get
from tests.support.servers import FaultServer, Request, answer, read_trace, restrict
from tests.support.tools import FIXTURES

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PRESSED, BUSY, IDLE, SCALED = "pressed", "busy", "idle", "scaled"
TRACES = {PRESSED: "long-context-collapse", BUSY: "full-batch", IDLE: "idle", SCALED: "long-context-collapse"}
SILENT_SECONDS = 240.0
"""Longer than `keep_firing_for` and every look back of the alerts that have to go on."""


@dataclass
class Replayed:
    """A recording served second by second, from its beginning again when it has ended."""

    trace: str
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.pages = [body for _, body in read_trace(FIXTURES / "traces" / f"{self.trace}.jsonl.xz")]

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        body = self.pages[int(time.monotonic() - self.began) % len(self.pages)]
        writer.write(answer(restrict(body, request.names) if request.names else body))


@dataclass
class Stage:
    """The engines, the file that names them, and whoever watches."""

    servers: dict[str, FaultServer]
    file: Path
    exporter: str
    hook: Webhook
    prometheus: str = ""

    def list(self, *names: str) -> None:
        """Poll these engines and no others."""
        self.file.write_text(json.dumps([{"targets": [self.address(name) for name in names]}]))

    def address(self, name: str) -> str:
        return self.servers[name].url.removeprefix("http://")

    def deliveries(self, name: str) -> list[Delivery]:
        """Everything that was told of one engine."""
        return [d for d in self.hook.deliveries if d.labels.get("target") == self.address(name)]

    async def firing(self, alert: str) -> set[str]:
        """The engines for which Prometheus has this alert fire, whether a page mutes its ticket or not."""
        alerts = json.loads(await get(f"{self.prometheus}/api/v1/alerts"))["data"]["alerts"]
        about = {
            one["labels"].get("target")
            for one in alerts
            if one["state"] == "firing" and one["labels"]["alertname"] == alert
        }
        return {name for name in self.servers if self.address(name) in about}


@contextlib.asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    async with contextlib.AsyncExitStack() as stack:
        servers = {n: await stack.enter_async_context(FaultServer(Replayed(t))) for n, t in TRACES.items()}
        hook = await stack.enter_async_context(webhook())
        _, manager = await stack.enter_async_context(alertmanager(directory, hook))
        port, file = free_port(), directory / "engines.json"
        made = Stage(servers, file, f"127.0.0.1:{port}", hook)
        made.list(*TRACES)
        sd = {"file_sd": [{"files": [str(file)], "refresh_seconds": 1}]}
        write_config(directory / "kvpressure.yaml", port, [], gpu={"vendors": []}, engines=sd)
        run = await stack.enter_async_context(exporter(directory, {}))
        await eventually(lambda: get(f"http://{made.exporter}/-/healthy"), run)
        made.prometheus = await stack.enter_async_context(prometheus(directory, made.exporter, manager))
        yield made


async def until(what: str, done: Callable[[], Awaitable[bool]], seconds: float, say: Callable[[str], None]) -> float:
    """Wait for it; gives how many seconds that took."""
    began = time.monotonic()
    while not await done():
        assert time.monotonic() - began < seconds, f"not within {seconds:.0f} s: {what}"
        await asyncio.sleep(0.5)
    took = time.monotonic() - began
    say(f"{took:5.0f} s  {what}")
    return took


async def test_alerts_outlive_silence_and_only_engines_that_had_requests_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)  # noqa: T201 - the timeline is what this test is read for

    async with stage(tmp_path) as on:
        say("")

        async def fires(alert: str, engines: set[str]) -> bool:
            return await on.firing(alert) == engines

        async def nothing_fires() -> bool:
            return not await on.firing("KVPressureCacheTooSmall") | await on.firing("KVPressureEngineNotAnswering")

        both = {PRESSED, SCALED}
        await until(
            "KVPressureCacheTooSmall fires for both engines under pressure",
            lambda: fires("KVPressureCacheTooSmall", both),
            300,
            say,
        )
        on.list(PRESSED, BUSY, IDLE)  # scaled away: gone from discovery, then stopped
        for server in on.servers.values():
            await server.stop()
        silent = time.monotonic()
        told = {PRESSED, BUSY}
        took = await until(
            "the two that had requests make a ticket", lambda: fires("KVPressureEngineNotAnswering", told), 240, say
        )
        assert took < 120
        await until(
            "the alert of the one scaled away is resolved",
            lambda: fires("KVPressureCacheTooSmall", {PRESSED}),
            600,
            say,
        )
        await asyncio.sleep(max(0.0, SILENT_SECONDS - (time.monotonic() - silent)))
        assert await fires("KVPressureCacheTooSmall", {PRESSED}), (
            "pressure that fires stays firing while its engine is silent"
        )
        assert await fires("KVPressureEngineNotAnswering", told)
        assert on.hook.got("firing", "KVPressureReplicasFailing", "critical"), "half of the replicas or more: a page"
        assert [d.key for d in on.deliveries(PRESSED) if d.status == "resolved"] == []
        page = await get(f"http://{on.exporter}/")
        assert "before that:" in page
        assert "3 of 3 engines: not answering" in page
        on.list()
        await until(
            "everything is resolved once no engine is to be polled",
            nothing_fires,
            600,
            say,
        )
        assert on.deliveries(IDLE) == [], "an idle engine that is stopped is nobody's incident"
