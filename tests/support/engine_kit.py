"""What the engine source's tests share: a target, a reader that needs no runtime table, and a clock that tests move."""

import asyncio
import heapq
import re
from dataclasses import dataclass, field
from pathlib import Path

from kvpressure.config.settings import PollSettings
from kvpressure.engines.engine import EngineSource, PollNames
from kvpressure.model.samples import EnginePage, EngineSample
from kvpressure.net.schedule import Clock
from kvpressure.promtext.lines import WithoutMetricsError
from tests.support.servers import FaultServer

NAMES = PollNames(("vllm:num_requests_running", "vllm:generation_tokens_total"), ("vllm:num_requests_running", "more"))
GOOD_PAGE = b"""# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1.0
# HELP vllm:generation_tokens_total Tokens.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 5.0
"""
FAST = PollSettings(interval_seconds=0.5, timeout_seconds=0.4)


@dataclass(frozen=True)
class Tls:
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False


@dataclass(frozen=True)
class Basic:
    username: str
    password_file: Path


@dataclass(frozen=True)
class Target:
    url: str
    name: str = "engine-a"
    path: str = "/metrics"
    tls: Tls | None = None
    bearer_token_file: Path | None = None
    basic_auth: Basic | None = None


@dataclass
class TinyReader:
    """Knows two series and the process start; remembers what it was given."""

    pages: list[bytes] = field(default_factory=list)

    def read(self, page: bytes, t: float) -> EnginePage:
        self.pages.append(page)
        found = dict(re.findall(rb"^(vllm:\w+|process_start\w+)(?:\{[^}]*\})? ([\d.e+]+)", page, re.MULTILINE))
        started = found.pop(b"process_start_time_seconds", None)
        if not found and started is None and b"vllm:" not in page:
            raise WithoutMetricsError(f"no known series, begins with {page[:4000]!r}")
        tokens = found.get(b"vllm:generation_tokens_total")
        engine = EngineSample("m", "0", {}, {"generation_tokens": float(tokens)} if tokens else {})
        return EnginePage(t, (engine,) if found else (), float(started) if started else None)


@dataclass
class VirtualClock:
    """Time that stands still until `advance`; sleepers wake in order, and the wall clock is 1.8e9 s ahead."""

    now: float = 1000.0
    _sleepers: list[tuple[float, int, asyncio.Event]] = field(default_factory=list)
    _count: int = 0

    def wall(self) -> float:
        return 1.8e9 + self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep_until(self, monotonic_seconds: float) -> None:
        event = asyncio.Event()
        self._count += 1
        heapq.heappush(self._sleepers, (monotonic_seconds, self._count, event))
        await event.wait()

    async def advance(self, seconds: float) -> None:
        """Move on, stopping at each sleeper that wakes on the way until it has run as far as it can without I/O."""
        until = self.now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, event = heapq.heappop(self._sleepers)
            self.now = max(self.now, due)
            event.set()
            await settle()
        self.now = max(self.now, until)


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def source_for(
    server: FaultServer | str, options: PollSettings = FAST, clock: Clock | None = None, **kwargs: object
) -> EngineSource:
    """A source for that server; keywords are fields of the target."""
    url = server if isinstance(server, str) else server.url
    return EngineSource(Target(url, **kwargs), TinyReader(), NAMES, options, clock)  # type: ignore[arg-type]
