"""`python -m bench.engines PORT`: many vLLM servers in one cheap process, replaying a recording.

Those under /slow-N take `SLOW_SECONDS` for each answer, those under /hang-N never answer.

Answers are made once per page and query, so that the measured exporter and not this server uses the processor.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from urllib.parse import parse_qs

from tests.support.servers import answer, read_trace, restrict
from tests.support.tools import FIXTURES

TRACE = FIXTURES / "traces" / "ramp-into-pressure.jsonl.xz"
PAGES = [page for _, page in read_trace(TRACE)]
STARTED = time.monotonic()
SLOW_SECONDS = 3.0


@functools.lru_cache(maxsize=8)
def respond(index: int, query: bytes) -> bytes:
    """The answer for a page of the recording; `query` holds the `name[]`s."""
    names = parse_qs(query.decode()).get("name[]")
    return answer(restrict(PAGES[index], names) if names else PAGES[index])


class Engine(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer a request that came in one piece, as ours do."""
        target = data.split(b" ", 2)[1]
        if target.startswith(b"/slow"):
            asyncio.get_running_loop().call_later(SLOW_SECONDS, self.answer, target)
        elif not target.startswith(b"/hang"):
            self.answer(target)

    def answer(self, target: bytes) -> None:
        """The page of this moment."""
        index = int(time.monotonic() - STARTED) % len(PAGES)
        self.transport.write(respond(index, target.partition(b"?")[2]))


async def main(port: int) -> None:
    """Serve until ended."""
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
