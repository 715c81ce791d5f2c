"""Engines of known truth: recordings served second by second, over and over, with faults among their answers."""

import asyncio
import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.servers import Behaviour, Request, answer, half_page, read_trace, restrict
from tests.support.servers import closes_at_once as closes
from tests.support.servers import error as http_error
from tests.support.servers import html as web_page
from tests.support.tools import FIXTURES

TRUTHS = {
    "idle": "idle",
    "light-load": "healthy",
    "full-batch": "healthy",
    "sequence-cap-queue": "concurrency_bound",
    "preemption-thrash": "kv_cache_pressure",
    "long-context-collapse": "kv_cache_pressure",
}
"""Recordings in which one cause holds from the first second to the last."""

FAULTS = ("500", "closed", "half a page", "a web page", "slow", "hung")
SLOW_SECONDS = 2.5
HANG_SECONDS = 60.0


@functools.cache
def pages_of(trace: str) -> Sequence[bytes]:
    """A recording's pages, read once however many engines serve it."""
    return [body for _, body in read_trace(FIXTURES / "traces" / f"{trace}.jsonl.xz")]


@functools.lru_cache(maxsize=64)
def _answer(trace: str, second: int, names: tuple[str, ...]) -> bytes:
    body = pages_of(trace)[second]
    return answer(restrict(body, names) if names else body)


@dataclass
class Engine:
    """A behaviour for `FaultServer`. A share `faulty` of the requests meets a fault; what came of each is counted.

    `served` counts whole pages sent in time, `asked` all requests, `met` the faults by name.
    """

    trace: str
    seed: int
    faulty: float = 0.0
    served: int = 0
    asked: int = 0
    met: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAULTS, 0))
    _began: float | None = None

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._offset = self._rng.random() * len(pages_of(self.trace))

    @property
    def truth(self) -> str:
        """The cause that holds."""
        return TRUTHS[self.trace]

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        fault = self._rng.choice(FAULTS) if self._rng.random() < self.faulty else ""
        if fault:
            self.met[fault] += 1
        if fault == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        elif fault == "hung":
            await asyncio.sleep(HANG_SECONDS)
            writer.close()  # its client has gone long ago
            return
        elif fault:
            await self._broken(fault)(request, writer)
            return
        writer.write(self._page(request))
        await writer.drain()
        self.served += 1

    def _broken(self, fault: str) -> Behaviour:
        body = pages_of(self.trace)[0]
        return {
            "500": http_error(),
            "closed": closes(),
            "half a page": half_page(body, honest_length=False),
            "a web page": web_page(),
        }[fault]

    def _page(self, request: Request) -> bytes:
        now = asyncio.get_running_loop().time()
        self._began = now if self._began is None else self._began
        second = int(now - self._began + self._offset) % len(pages_of(self.trace))
        return _answer(self.trace, second, request.names)
