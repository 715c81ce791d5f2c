"""Real processes for end-to-end tests: started, asked over HTTP, and always ended."""

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PATIENCE_SECONDS = 300.0
"""Before something is called stuck. Nothing waits this long: it is for machines ten times slower than a usual one."""
KVPRESSURE = (sys.executable, "-m", "kvpressure")


_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_PORTS: Final = itertools.cycle(range(20_000 + 1_500 * (_WORKER % 8), 21_500 + 1_500 * (_WORKER % 8)))
"""Below those that the kernel gives to connections, and other ones for each worker: none is taken before it is used."""


def free_port() -> int:
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("the ports never end")


for _ in range(os.getpid() % 1_500):  # another run of the tests may have the same worker
    next(_PORTS)


@dataclass
class Process:
    """A running program and the file its output goes to."""

    process: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    async def end(self, ending: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; gives the exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(ending)
        return await asyncio.wait_for(self.process.wait(), PATIENCE_SECONDS)


@contextlib.asynccontextmanager
async def running(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> AsyncIterator[Process]:
    """Start a program; it is killed with its children when the block ends."""
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=out, stderr=out, env={**os.environ, **(env or {})}, start_new_session=True
        )
    try:
        yield Process(process, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def get(url: str, headers: Mapping[str, str] | None = None) -> str:
    """Body of a GET; raises OSError."""

    def fetch() -> str:
        request = urllib.request.Request(url, headers=dict(headers or {}))
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            return str(response.read().decode())

    return await asyncio.to_thread(fetch)


async def eventually(check: Callable[[], Any], process: Process) -> Any:
    """The first true answer of an async `check`; a failure shows the process's output."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE_SECONDS
    problem: Any = None
    while loop.time() < end:
        assert process.process.returncode is None, process.output()
        try:
            problem = await check()
            if problem:
                return problem
        except OSError as error:
            problem = error
        await asyncio.sleep(0.2)
    raise AssertionError(f"still not so after {PATIENCE_SECONDS} s ({problem})\n{process.output()[-4000:]}")


async def query(prometheus: str, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
    """An instant query: labels without the scrape's own, to value."""
    text = await get(f"{prometheus}/api/v1/query?query={urllib.parse.quote(expression)}")
    found = json.loads(text)["data"]["result"]
    return {
        tuple(sorted((k, v) for k, v in one["metric"].items() if k not in ("instance", "job"))): float(one["value"][1])
        for one in found
    }


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
