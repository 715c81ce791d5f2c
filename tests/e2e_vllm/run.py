"""One run: servers up, the phases one after the other, our own commands in each of them, servers down."""

import asyncio
import contextlib
import json
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e_vllm import servers, token_ids
from tests.e2e_vllm.environment import Environment
from tests.e2e_vllm.load import Tally, driving
from tests.e2e_vllm.observe import AlertEpisode, Look, Observer, gauges_of
from tests.e2e_vllm.scenario import Event, Phase, Scenario
from tests.support.processes import Process, free_port, get, query

TRIAGE_SECONDS = 30
"""Its default."""
TRIAGE_AFTER_SECONDS = 25.0
PLAN_SECONDS = 30
IDLE_WITHIN_SECONDS = 30
COMMAND_WITHIN_SECONDS = 120.0
STOPS = 20
PUBLISHED_WITHIN_SECONDS = 1.5
POLLED_SECONDS = 2.0
"""Until the exporter has read what came last."""
SESSIONS_SEARCHED = 20
"""The newest, whose token ids are looked for: each is a search of all memory."""


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
class KvEventsRead:
    """What the exporter has read of KV events: `counts` by kind and outcome, and the hit ratio by size of the pool.

    `missed_tokens` are the capacity misses it counts; `again_tokens` those of the prompts that vLLM had computed for
    the turn before and did not find. Of the newest `sessions`, `token_ids` are those whose ids it has in its memory, or
    writes.
    """

    counts: dict[str, float]
    hit_ratio: float | None
    hit_ratio_by_pool: dict[str, float]
    missed_tokens: float
    again_tokens: float
    sessions: int
    token_ids: int


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
    kv_events: KvEventsRead | None = None
    """None where none are published."""


@dataclass
class Engine:
    """The vLLM of a run, which can be killed and booted again on its port."""

    environment: Environment
    scenario: Scenario
    port: int
    folder: Path
    boots: list[float]
    group: int = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Process]:
        """Booted when the block begins, killed when it ends."""
        began = time.monotonic()
        log = self.folder / f"vllm-{len(self.boots)}.log"
        async with servers.vllm(self.environment, self.scenario, self.port, log) as process:
            self.boots.append(time.monotonic() - began)
            self.group = process.pid
            yield process


@dataclass
class Run:
    """One scenario on its way."""

    engine: Engine
    life: contextlib.AsyncExitStack
    """vLLM is killed when this is closed."""
    observer: Observer
    story: Story

    async def visit(self, phase: Phase) -> Visit:
        """The phase's event and its load for its time; `triage` is run beside it once things have settled."""
        visit = Visit(phase, time.time())
        self.observer.phase = "down" if phase.event is Event.RESTART else phase.name
        if phase.event and not phase.lead_seconds:
            if phase.event is Event.STOP:
                await self._idle()
            await self._happen(phase.event, visit)
        async with driving(self.engine.url, phase.load, seed=len(self.story.visits)) as visit.tally:
            if phase.event and phase.lead_seconds:
                await asyncio.sleep(phase.lead_seconds)
                if phase.event is Event.STOP:
                    await self._stop_at_work()
                else:
                    await self._happen(phase.event, visit)
            self.observer.phase = phase.name
            visit.began = time.time()
            triage = asyncio.create_task(_triage(self.engine.url, after=TRIAGE_AFTER_SECONDS))
            plan = asyncio.create_task(_plan(self.engine.url)) if phase.plans else None
            if phase.triage_exit is None:
                triage.cancel()
            try:
                await asyncio.sleep(phase.seconds)
                if phase.triage_exit is not None:
                    visit.triage = await triage
                self.story.plan = await plan if plan else self.story.plan
            finally:
                triage.cancel()
                if plan:
                    plan.cancel()
        visit.ended = time.time()
        return visit

    async def _idle(self) -> None:
        """Until the requests of the phase before are gone from the page: a stopped core would leave them there."""
        for _ in range(IDLE_WITHIN_SECONDS):
            if not any(gauges_of(await get(f"{self.engine.url}/metrics")).values()):
                return
            await asyncio.sleep(1.0)
        raise RuntimeError(f"vLLM still has requests {IDLE_WITHIN_SECONDS} s after all clients left")

    async def _stop_at_work(self) -> None:
        """Stop the core so that its page stands still with requests running; between two waves of them it shows none.

        The API process may still publish what the core sent before it was stopped.
        """
        for _ in range(STOPS):
            servers.signal_core(self.engine.group, signal.SIGSTOP)
            await asyncio.sleep(PUBLISHED_WITHIN_SECONDS)
            if gauges_of(await get(f"{self.engine.url}/metrics")).get("num_requests_running"):
                return
            servers.signal_core(self.engine.group, signal.SIGCONT)
            await asyncio.sleep(PUBLISHED_WITHIN_SECONDS / 2)
        raise RuntimeError(f"vLLM was stopped {STOPS} times, and its page never stood still with requests running")

    async def _happen(self, event: Event, visit: Visit) -> None:
        engine = self.engine
        if event is Event.STOP:
            servers.signal_core(engine.group, signal.SIGSTOP)
        elif event is Event.CONTINUE:
            servers.signal_core(engine.group, signal.SIGCONT)
        else:
            await self.life.aclose()
            killed = time.time()
            # What it says of nothing.
            visit.triage_while_down, _ = await _triage(engine.url, after=0.0)
            await self.life.enter_async_context(engine.serving())
            self.story.down = (killed, time.time())


async def play(
    environment: Environment,
    scenario: Scenario,
    folder: Path,
    say: Callable[[str], None],
    on_look: Callable[[Look], None],
) -> Story:
    """Run all phases of a scenario; `say` gets a line per phase, `on_look` every second."""
    story = Story()
    if scenario.kv_events:
        scenario = scenario.publishing(free_port(), free_port())
    engine = Engine(environment, scenario, free_port(), folder, story.boot_seconds)
    ours = free_port()
    async with contextlib.AsyncExitStack() as stack:
        say(f"{scenario.name}: booting vLLM {' '.join(scenario.flags)}")
        life = await stack.enter_async_context(contextlib.AsyncExitStack())
        await life.enter_async_context(engine.serving())
        say(f"vLLM serves after {story.boot_seconds[-1]:.0f} s")
        process = await stack.enter_async_context(servers.exporter(engine.url, ours, folder, scenario.settings))
        exporter = f"http://127.0.0.1:{ours}"
        prometheus = await stack.enter_async_context(servers.prometheus(ours, free_port(), folder))
        observer = Observer(engine.url, exporter, prometheus, folder / "recording.jsonl.gz", on_look)
        observer.looks, observer.alerts, observer.failures = story.looks, story.alerts, story.failures
        run = Run(engine, life, observer, story)
        watching = asyncio.create_task(observer.run())
        try:
            for phase in scenario.phases:
                say(
                    f"{phase.name}: {phase.load}, {phase.seconds:.0f} s"
                    + (f"; {phase.event.value}" if phase.event else "")
                )
                if phase.settings is not None:
                    servers.configure(engine.url, ours, folder, phase.settings)
                visit = await run.visit(phase)
                story.visits.append(visit)
                visit.page_bytes_per_second = await _page_rate(prometheus, visit)
                if watching.done():
                    watching.result()
            if scenario.kv_events:
                story.kv_events = await _kv_events(story, engine, exporter, process)
            story.full_page_bytes = len(await get(f"{engine.url}/metrics"))
            story.targets = json.loads(await get(f"{exporter}/targets"))
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
    return story


async def _triage(url: str, after: float) -> tuple[int, str]:
    """Exit code and cause of `kvpressure triage`."""
    await asyncio.sleep(after)
    try:
        code, out = await kvpressure("triage", url, "--duration", str(TRIAGE_SECONDS), "--json")
    except TimeoutError:
        return -1, f"did not end within {COMMAND_WITHIN_SECONDS:.0f} s"
    return code, ", ".join(engine["cause"] for engine in json.loads(out)["engines"])


async def _plan(url: str) -> dict[str, Any]:
    """What `kvpressure plan --url` makes of the traffic that collapses the engine."""
    await asyncio.sleep(TRIAGE_AFTER_SECONDS + TRIAGE_SECONDS)
    code, out = await kvpressure("plan", "--url", url, "--duration", str(PLAN_SECONDS), "--json")
    return {"exit": code, **(json.loads(out) if out.startswith("{") else {"said": out})}


async def kvpressure(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a command of ours; raises TimeoutError where it does not end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvpressure", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), COMMAND_WITHIN_SECONDS)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()
    return process.returncode or 0, out.decode() or err.decode()


async def _kv_events(story: Story, engine: Engine, exporter: str, process: Process) -> KvEventsRead:
    await asyncio.sleep(POLLED_SECONDS)
    page, own = await get(f"{exporter}/metrics"), await get(f"{engine.url}/metrics")
    tallies = [visit.tally for visit in story.visits]
    begins = [words for tally in tallies for words in tally.begins]
    blocks = int(dict(zip(engine.scenario.flags, engine.scenario.flags[1:], strict=False))["--block-size"])
    repeated = sum(before // blocks * blocks for tally in tallies for before in tally.repeated)
    written = page + await get(f"{exporter}/api/v1/diagnosis") + process.output()
    some = begins[-SESSIONS_SEARCHED:]
    in_memory = await asyncio.to_thread(token_ids.in_memory, process.pid, some)
    return KvEventsRead(
        counts=_labelled(page, "kvpressure_kv_event[a-z_]*", "(?:kind|outcome)"),
        hit_ratio=next(iter(_values(page, "kvpressure_prefix_cache_hit_ratio")), None),
        hit_ratio_by_pool=_labelled(page, "kvpressure_prefix_cache_pool_hit_ratio", "pool_ratio"),
        missed_tokens=sum(_values(page, "kvpressure_kv_capacity_miss_tokens_total")),
        again_tokens=repeated - sum(_values(own, "vllm:prefix_cache_hits_total")),
        sessions=len(some),
        token_ids=in_memory + token_ids.in_text(written, some),
    )


def _labelled(page: str, name: str, label: str) -> dict[str, float]:
    found = re.findall(rf'^{name}\{{.*\b{label}="([^"]+)".*\}} (\S+)$', page, re.MULTILINE)
    return {value: float(number) for value, number in found}


def _values(page: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf"^{name}\{{.*\}} (\S+)$", page, re.MULTILINE)]


async def _page_rate(prometheus: str, visit: Visit) -> float | None:
    """Bytes of engine pages that the exporter received per second of the phase's settled part."""
    seconds = int(visit.ended - visit.began - 10.0)
    found = await query(prometheus, f"rate(kvpressure_engine_page_bytes_total[{max(20, seconds)}s])")
    return next(iter(found.values()), None)
