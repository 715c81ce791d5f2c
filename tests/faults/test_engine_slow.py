"""A server under load answers late: as long as it is within the deadline, it must be read."""

from __future__ import annotations

import asyncio

import pytest

from kvpressure.runtimes.reader import PageReader
from kvpressure.runtimes.vllm import ALL_NAMES, POLL_NAMES
from kvpressure.sources.engine import INLINE_BYTES, EngineSource, PollNames, PollOptions
from tests.faults.engine_kit import Target
from tests.faults.servers import FaultServer, Replay, Request, page, read_trace
from tests.tools import FIXTURES

PAGES = read_trace(FIXTURES / "traces" / "idle.jsonl.xz")
NAMES = PollNames(POLL_NAMES, ALL_NAMES)
DEADLINE_SECONDS = 1.6


def source_of(server: FaultServer) -> EngineSource:
    return EngineSource(Target(server.url), PageReader(), NAMES, PollOptions(timeout_seconds=DEADLINE_SECONDS))


@pytest.mark.parametrize("mode", ["honours", "ignores", "empty", "missing"])
async def test_a_server_that_takes_most_of_the_deadline_is_read_on_every_poll(mode):
    replay = Replay(PAGES, filter=mode)

    async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5 * DEADLINE_SECONDS)
        await replay(request, writer)

    async with FaultServer(slow) as server:
        source = source_of(server)
        pages = [await source.poll() for _ in range(2)]
        await source.aclose()
    assert [page is not None for page in pages] == [True, True], source.health()
    assert source.health().errors == {}


async def test_a_server_that_stalled_once_is_read_again_at_the_next_poll():
    replay = Replay(PAGES, filter="empty")
    delays = iter((0.0, 0.0, 2 * DEADLINE_SECONDS, *[0.5 * DEADLINE_SECONDS] * 9))

    async def stalls(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(next(delays))
        await replay(request, writer)

    async with FaultServer(stalls) as server:
        source = source_of(server)
        read = [await source.poll() is not None for _ in range(4)]
        await source.aclose()
    # The first poll asks twice: the filtered address, which answers nothing, and the plain one.
    assert read == [True, False, True, True]


async def test_a_long_page_is_read_aside_and_the_loop_goes_on():
    body = PAGES[0][1]
    long = body + b"".join(b'other_metric_%d{a="%s"} 1.0\n' % (i, b"x" * 200) for i in range(6000))
    assert len(long) > INLINE_BYTES
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async with FaultServer(page(long)) as server:
        source = EngineSource(
            Target(server.url), PageReader(), NAMES, PollOptions(timeout_seconds=10.0, filter="never")
        )
        ticking = asyncio.ensure_future(tick())
        found = await source.poll()
        ticking.cancel()
        await source.aclose()
    assert found is not None
    assert found.engines == PageReader().read(body, found.t).engines
    assert ticks > 10
