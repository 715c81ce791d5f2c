"""Commands as users run them, and engines that answer a recording."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from tests.support.processes import KVPRESSURE, PATIENCE_SECONDS
from tests.support.servers import FaultServer, Replay, read_trace
from tests.support.tools import FIXTURES

TRACES = FIXTURES / "traces"


def serving(trace: str) -> FaultServer:
    """A server that answers one page of a recording per request."""
    return FaultServer(Replay(read_trace(TRACES / f"{trace}.jsonl.xz")))


async def kvpressure(*arguments: str | Path, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Run a command to its end: exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *KVPRESSURE,
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode(), err.decode()
