"""An engine whose page and whose API each do what a test says, and the exporter's daemon that watches it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvpressure.config.settings import Settings
from kvpressure.config.settings.load import Loaded
from kvpressure.config.thresholds import load_thresholds
from kvpressure.daemon.exporter import Daemon
from kvpressure.model.verdict import Cause, Evidence
from kvpressure.model.view import EngineView
from tests.support.servers import Behaviour, FaultServer, Request, answer
from tests.support.virtual_time import LoopClock

COMPLETION = json.dumps({"object": "text_completion", "choices": [{"text": "b"}], "usage": {"completion_tokens": 1}})
ON: Mapping[str, object] = {"enabled": True}
UNANSWERED_500 = '{"error": {"message": "EngineCore encountered an issue. See stack trace (above).", "code": 500}}'


def json_reply(body: str, status: str = "200 OK") -> Behaviour:
    async def behave(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(body.encode(), status))

    return behave


@dataclass
class CanaryEngine:
    """A behaviour for `FaultServer`. `api` answers all but the page; `asked` is what came there, `times` when.

    While it `works`, tokens go up by the second; `running` and `waiting` are on the page as they are here. Without an
    `api` it gives the token that it is asked for, which its page then shows, as a real server's does.
    """

    api: Behaviour | None = None
    works: bool = False
    running: int = 0
    waiting: int = 0
    model: str = "m"
    ranks: tuple[str, ...] = ("0",)
    more: str = ""
    tokens: float = 1000.0
    finished: float = 10.0
    prefix: str = ""
    asked: list[Request] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    _last: float = 0.0

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        now = asyncio.get_running_loop().time()
        if request.path.rstrip("/") == f"{self.prefix}/metrics":
            writer.write(answer(self._page(now)))
            return
        self.asked.append(request)
        self.times.append(now)
        if self.api is None:
            self.tokens, self.finished = self.tokens + 1, self.finished + 1
        await (self.api or json_reply(COMPLETION))(request, writer)

    def posts(self) -> list[dict[str, Any]]:
        """The bodies that were sent."""
        return [json.loads(request.body) for request in self.asked if request.method == "POST"]

    def _page(self, now: float) -> bytes:
        if self.works:
            self.tokens += 100 * (now - self._last)
            self.finished += now - self._last
        self._last = now
        lines = ["process_start_time_seconds 1.7e9"]
        for rank in self.ranks:
            labels = f'{{engine="{rank}",model_name="{self.model}"}}'
            lines += [
                f"vllm:num_requests_running{labels} {self.running}",
                f"vllm:num_requests_waiting{labels} {self.waiting}",
                f"vllm:kv_cache_usage_perc{labels} {0.5 if self.running else 0.0}",
                f"vllm:generation_tokens_total{labels} {self.tokens}",
                f"vllm:prompt_tokens_total{labels} {self.tokens}",
                f'vllm:request_success_total{{finished_reason="stop",{labels[1:]} {self.finished}',
            ]
        return "\n".join([*lines, *self.more.splitlines(), ""]).encode()


@dataclass
class Watched:
    """The daemon and the one engine that it watches."""

    daemon: Daemon
    engine: CanaryEngine
    server: FaultServer
    running: asyncio.Task[None]

    @property
    def view(self) -> EngineView:
        """The engine as it is shown now."""
        (view,) = self.daemon.snapshot().engines
        return view

    @property
    def cause(self) -> Cause:
        """The verdict now."""
        assert self.view.diagnosis is not None
        return self.view.diagnosis.cause

    @property
    def evidence(self) -> Evidence:
        """What the requests of one token came to."""
        assert self.view.diagnosis is not None
        return self.view.diagnosis.symptoms["canary_unanswered"]

    @property
    def under_way(self) -> int:
        """Requests of one token that await their answer."""
        return len(self.daemon._canaries._tasks)

    @property
    def counts(self) -> Mapping[str, float]:
        """How they ended, those that did."""
        told = self.view.derived["canary_requests_total"]
        assert isinstance(told, dict)
        return {result: count for result, count in told.items() if count}

    async def causes(self, seconds: int) -> list[Cause]:
        """The verdict of each of the next seconds."""
        told = []
        for _ in range(seconds):
            await asyncio.sleep(1.0)
            told.append(self.cause)
        return told


@contextlib.asynccontextmanager
async def watched(
    engine: CanaryEngine, canary: Mapping[str, object] | None = ON, thresholds: str = "", **target: object
) -> AsyncIterator[Watched]:
    """Run the daemon on the loop's time until the block ends. Without `canary` the settings have no such key."""
    async with FaultServer(engine) as server:
        engines: dict[str, object] = {"targets": [{"name": "engine", "url": server.url, **target}]}
        if canary is not None:
            engines["canary"] = canary
        settings = Settings.model_validate(
            {"engines": engines, "gpu": {"vendors": []}, "host": {"enabled": False}, "logs": {"enabled": "false"}}
        )
        daemon = Daemon(
            Loaded(settings, load_thresholds(thresholds or None)), lambda: settings, lambda *_: (), LoopClock()
        )
        running = asyncio.create_task(daemon.run())
        try:
            yield Watched(daemon, engine, server, running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
