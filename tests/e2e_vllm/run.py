"""One run: servers up, the phases one after the other, our own commands in each of them, servers down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e_vllm import servers
from tests.e2e_vllm.environment import Environment
from tests.e2e_vllm.load import Tally, driving
from tests.e2e_vllm.observe import AlertEpisode, Look, Observer
from tests.e2e_vllm.scenario import Bars, Phase
from tests.support.processes import Process, free_port, get, query

TRIAGE_SECONDS = 30
"""Its default."""
TRIAGE_AFTER_SECONDS = 25.0
PLAN_SECONDS = 30


@dataclass(slots=True)
class Visit:
    """A phase as it went. `began` is its first request; `page_bytes_per_second` is None where it was not measured."""

    phase: Phase
    began: float
    ended: float = 0.0
    tally: Tally = field(default_factory=Tally)
    triage: tuple[int, str] | None = None
    triage_while_down: int | None = None
    page_bytes_per_second: float | None = None


@dataclass(slots=True)
class Story:
    """Everything that a run showed."""

    boot_seconds: list[float] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    alerts: list[AlertEpisode] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    full_page_bytes: int = 0
    plan: dict[str, Any] = field(default_factory=dict)
    targets: dict[str, Any] = field(default_factory=dict)
    down: tuple[float, float] = (0.0, 0.0)


@dataclass
class Engine:
    """The vLLM of a run, which can be killed and booted again on its port."""

    environment: Environment
    port: int
    folder: Path
    boots: list[float]

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Process]:
        """Booted when the block begins, killed when it ends."""
        began = time.monotonic()
        async with servers.vllm(self.environment, self.port, self.folder / f"vllm-{len(self.boots)}.log") as process:
            self.boots.append(time.monotonic() - began)
            yield process


async def play(
    environment: Environment,
    phases: tuple[Phase, ...],
    folder: Path,
    bars: Bars,
    say: Callable[[str], None],
    on_look: Callable[[Look], None],
) -> Story:
    """Run all phases; `say` gets a line per phase, `on_look` every second."""
    story = Story()
    engine = Engine(environment, free_port(), folder, story.boot_seconds)
    ours = free_port()
    async with contextlib.AsyncExitStack() as stack:
        say("booting vLLM")
        life = await stack.enter_async_context(contextlib.AsyncExitStack())
        await life.enter_async_context(engine.serving())
        say(f"vLLM serves after {story.boot_seconds[-1]:.0f} s")
        exporter = await stack.enter_async_context(servers.exporter(engine.url, ours, folder))
        prometheus = await stack.enter_async_context(servers.prometheus(ours, free_port(), folder))
        observer = Observer(engine.url, exporter, prometheus, folder / "recording.jsonl.gz", on_look)
        observer.looks, observer.alerts, observer.failures = story.looks, story.alerts, story.failures
        watching = asyncio.create_task(observer.run())
        try:
            for phase in phases:
                say(f"{phase.name}: {phase.load}, {phase.seconds:.0f} s")
                observer.phase = phase.name
                if phase.restart:
                    observer.phase = "down"
                    visit = await _restarted(engine, life, phase, story, observer)
                else:
                    visit = await _visit(engine, phase, story, observer, bars)
                story.visits.append(visit)
                visit.page_bytes_per_second = await _page_rate(prometheus, visit)
                if watching.done():
                    watching.result()
            story.full_page_bytes = len(await get(f"{engine.url}/metrics"))
            story.targets = json.loads(await get(f"{exporter}/targets"))
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
    return story


async def _visit(engine: Engine, phase: Phase, story: Story, observer: Observer, bars: Bars) -> Visit:
    """The phase's load for its time; `triage` is run beside it once things have settled."""
    visit = Visit(phase, time.time())
    async with driving(engine.url, phase.load, seed=len(story.visits)) as visit.tally:
        triage = asyncio.create_task(_triage(engine.url, after=TRIAGE_AFTER_SECONDS))
        plan = asyncio.create_task(_plan(engine.url)) if phase.pages else None
        try:
            while (lasted := time.time() - visit.began) < phase.seconds:
                resolved = phase.until_resolved and lasted > bars.recovery_seconds
                if resolved and not observer.firing("KVCachePressure"):
                    break
                await asyncio.sleep(1.0)
            visit.triage = await triage
            story.plan = await plan if plan else story.plan
        finally:
            triage.cancel()
            if plan:
                plan.cancel()
    visit.ended = time.time()
    return visit


async def _restarted(
    engine: Engine, life: contextlib.AsyncExitStack, phase: Phase, story: Story, observer: Observer
) -> Visit:
    """Kill vLLM under load, ask `triage` what it says of nothing, boot it again, and go on with the load."""
    async with driving(engine.url, phase.load, seed=99):
        await asyncio.sleep(10.0)
        await life.aclose()
        killed = time.time()
        code, _ = await _triage(engine.url, after=0.0)
        await life.enter_async_context(engine.serving())
    story.down = (killed, time.time())
    observer.phase = phase.name
    visit = await _visit(engine, phase, story, observer, Bars())
    visit.triage_while_down = code
    return visit


async def _triage(url: str, after: float) -> tuple[int, str]:
    """Exit code and cause of `kvpressure triage`."""
    await asyncio.sleep(after)
    code, out = await _kvpressure("triage", url, "--duration", str(TRIAGE_SECONDS), "--json")
    return code, ", ".join(engine["cause"] for engine in json.loads(out)["engines"])


async def _plan(url: str) -> dict[str, Any]:
    """What `kvpressure plan --url` makes of the traffic that collapses the engine."""
    await asyncio.sleep(TRIAGE_AFTER_SECONDS + TRIAGE_SECONDS)
    code, out = await _kvpressure("plan", "--url", url, "--seconds", str(PLAN_SECONDS), "--json")
    return {"exit": code, **(json.loads(out) if out.startswith("{") else {"said": out})}


async def _kvpressure(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvpressure", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 120.0)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()
    return process.returncode or 0, out.decode() or err.decode()


async def _page_rate(prometheus: str, visit: Visit) -> float | None:
    """Bytes of engine pages that the exporter received per second of the phase's settled part."""
    seconds = int(visit.ended - visit.began - 10.0)
    found = await query(prometheus, f"rate(kvpressure_engine_page_bytes_total[{max(20, seconds)}s])")
    return next(iter(found.values()), None)
