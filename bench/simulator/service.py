"""A simulated vLLM server: a scenario on a virtual clock, asked for its page and its GPUs at any later moment.

GPUs are as a driver would report them. A server can be read once a second, as recordings have it
(tests/fixtures/traces/README.md).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.simulator.clients import Clients, Frontend, Phase
from bench.simulator.config import EngineConfig, GpuConfig
from bench.simulator.pages import PageWriter
from bench.simulator.scheduler import Rank
from bench.simulator.stats import SAMPLE_SECONDS, Request
from kvpressure.engines.recordings import gpu_record
from kvpressure.model.samples import GpuSample


class GpuReader:
    """Reads the ranks' activity. Memory is the preallocated share, plus activations beyond the profiled ones."""

    def __init__(self, config: EngineConfig, rng: random.Random) -> None:
        self._config = config
        self._since = 0.0
        self._growth_bytes = 0.0
        prefix = f"{rng.getrandbits(32):08x}"
        self._uuid = "GPU-" + prefix + "-0000-4000-8000-{:012x}"

    def note_tokens(self, tokens: int) -> None:
        """Long requests make the caching allocator keep a little more for itself (up to 1 % of the device)."""
        if self._config.gpu:
            ceiling = 0.01 * self._config.gpu.memory_bytes
            self._growth_bytes = min(ceiling, max(self._growth_bytes, ceiling * tokens / self._config.max_model_len))

    def read(self, clock: float, start: float, ranks: list[Rank]) -> list[GpuSample]:
        """One sample per GPU at virtual second `clock`; utilization covers the time since the last read."""
        gpu = self._config.gpu
        if gpu is None:
            return []
        samples = [
            sample for number, rank in enumerate(ranks) for sample in self._of_rank(rank, number, gpu, clock, start)
        ]
        self._since = clock
        return samples

    def _of_rank(self, rank: Rank, number: int, gpu: GpuConfig, clock: float, start: float) -> list[GpuSample]:
        elapsed = max(clock - self._since, SAMPLE_SECONDS)
        busy = rank.activity.busy_ratios(self._since, clock)
        mean_busy = sum(busy) / len(busy) if busy else 0.0
        compute, memory = (min(1.0, seconds / elapsed) for seconds in rank.activity.take_seconds())
        used = gpu.memory_bytes * self._config.gpu_memory_utilization + gpu.other_bytes + self._growth_bytes
        return [
            GpuSample(
                t=start + clock,
                uuid=self._uuid.format(index),
                index=str(index),
                vendor=gpu.vendor,
                name=gpu.name,
                driver_version=gpu.driver_version,
                memory_used_bytes=min(used, gpu.memory_bytes),
                memory_total_bytes=gpu.memory_bytes,
                utilization=busy,
                sm_active_ratio=max(compute, memory, 0.9 * mean_busy),
                tensor_active_ratio=compute,
                dram_active_ratio=memory,
            )
            for index in range(number * gpu.per_rank, (number + 1) * gpu.per_rank)
        ]


DEFAULT_START = 1_800_000_000.0


class ServerDownError(ConnectionError):
    """The simulated server is restarting and answers nothing."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """An engine, and what happens to it."""

    name: str
    engine: EngineConfig
    phases: tuple[Phase, ...]

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return sum(phase.seconds for phase in self.phases)


class SimulatedServer:
    """Plays `scenario` from unix time `start`. Ask with times that do not decrease; the last phase goes on for ever."""

    rank_type = Rank

    def __init__(self, scenario: Scenario, seed: int = 0, start: float = DEFAULT_START) -> None:
        self.scenario = scenario
        self.start = start
        self.phase: Phase | None = None
        self._config = scenario.engine
        self._rng = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._scheduled = 0
        self._clock = 0.0
        self._clients = Clients(self._config, self._rng, self._at, self._arrive)
        self._gpus = GpuReader(self._config, self._rng)
        self._down = False
        self._turn = 0
        self._frontend: Frontend
        self._writer: PageWriter
        self.ranks: list[Rank]
        self._boot(0.0)
        self._plan()

    def page(self, now: float) -> bytes:
        """The `/metrics` page at unix time `now`. ServerDownError while the scenario restarts the server."""
        self.advance(now)
        if self._down:
            raise ServerDownError(f"scenario {self.scenario.name}: the server restarts at t={self._clock:.1f} s")
        return self._writer.page()

    def gpus(self, now: float) -> list[GpuSample]:
        """The engine's GPUs at unix time `now`, with utilization samples since the last call; [] without GPUs."""
        self.advance(now)
        return self._gpus.read(self._clock, self.start, self.ranks)

    @property
    def clock(self) -> float:
        """Seconds of the scenario that have been played."""
        return self._clock

    def label(self, now: float) -> str:
        """The truth at unix time `now`."""
        self.advance(now)
        return self.phase.label if self.phase else "idle"

    def advance(self, now: float) -> None:
        """Play on until unix time `now`."""
        until = now - self.start
        while True:
            rank = min(self.ranks, key=lambda rank: rank.end)
            event = self._events[0][0] if self._events else until + 1
            at = min(rank.end, event)
            if at > until:
                break
            if rank.end <= event:
                self._answer(rank.settle(at))
            else:
                _, _, run = heapq.heappop(self._events)
                run(at)
        self._clock = max(self._clock, until)
        for rank in self.ranks:
            self._answer(rank.settle(self._clock))
            rank.publish_queue()

    # -- the plan

    def _plan(self) -> None:
        t = 0.0
        for phase in self.scenario.phases:
            self._at(t, partial(self._enter, phase))
            t += phase.seconds

    def _enter(self, phase: Phase, t: float) -> None:
        self.phase = phase
        self._frontend.factor = phase.frontend_factor
        if phase.hangs_up or phase.fault:
            self._hang_up(t)
        if self._down and phase.fault != "restart":
            self._boot(t)
            self._frontend.factor = phase.frontend_factor
        self._down = phase.fault == "restart"
        for rank in self.ranks:
            self._answer(rank.set_paused(bool(phase.fault), t))
        self._clients.start_phase(phase, t)

    def _boot(self, t: float) -> None:
        """A new server process: every counter at 0, nothing in flight."""
        self._down = False
        self.ranks = [self.rank_type(self._config, self._rng) for _ in range(self._config.ranks)]
        for rank in self.ranks:
            rank.peers = self.ranks
        self._frontend = Frontend(self._config)
        self._writer = PageWriter(self._config, self.ranks, self._frontend, self.start + t)

    # -- requests

    def _at(self, t: float, run: Callable[[float], None]) -> None:
        if t != float("inf"):
            self._scheduled += 1
            heapq.heappush(self._events, (t, self._scheduled, run))

    def _arrive(self, request: Request, t: float) -> None:
        if self._down:
            return
        generated = sum(rank.stats.counters["generation_tokens"] for rank in self.ranks)
        frontend = self._frontend
        ready = frontend.ready(request, t, generated)
        self._at(ready, lambda now: self._enqueue(request, now) if frontend is self._frontend else None)

    def _enqueue(self, request: Request, t: float) -> None:
        """To the rank with the shortest queue."""
        self._turn += 1
        order = self.ranks[self._turn % len(self.ranks) :] + self.ranks[: self._turn % len(self.ranks)]
        rank = min(order, key=lambda rank: rank.queue_score)
        self._answer(rank.settle(t))
        self._gpus.note_tokens(request.tokens)
        rank.enqueue(request, t)

    def _answer(self, ended: list[Request]) -> None:
        for request in ended:
            self._frontend.answers += 1
            self._clients.answered(request, request.last_token)

    def _hang_up(self, t: float) -> None:
        for rank in self.ranks:
            for request in rank.abort_all(t):
                request.last_token = t
                self._frontend.answers += 1


def frames(server: SimulatedServer, offset_seconds: float = 0.5) -> Iterator[dict[str, Any]]:
    """One object per second: `t` (unix seconds), `label` (the truth), `page`, and `gpus` where the engine has any.

    Reads that a restarting server does not answer are left out, as a recorder would.
    """
    for second in range(int(server.scenario.seconds)):
        t = server.start + second + offset_seconds
        label = server.label(t)
        try:
            frame: dict[str, Any] = {"t": t, "label": label, "page": server.page(t).decode()}
        except ServerDownError:
            continue
        gpus = [gpu_record(sample) for sample in server.gpus(t)]
        yield {**frame, "gpus": gpus} if gpus else frame
