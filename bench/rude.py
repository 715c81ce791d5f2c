"""`python -m bench.rude PORT waiting|asking|reading SECONDS`: clients that keep the server busy, over loopback.

`waiting`: 2,000 connections that say nothing, 100 slow heads, 100 slow bodies, 100 slow readers; whoever is dropped
comes again. `asking`: 300 scrapers once a second, 100 wrong passwords a second, 10 pages of engines and 10 diagnoses a
second. `reading`: 500 clients ask for /metrics and take 4 KiB of it a second. All come
from one address, so that nothing tells them from the scrape that is measured. Prints as JSON how many answers of each
status there were, how many connections were dropped, and how many never were made.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

IDLE, SLOW_HEADS, SLOW_BODIES, SLOW_READERS = 2000, 100, 100, 100
SCRAPERS, WRONG_PER_SECOND, PAGES_PER_SECOND = 300, 100, 10
READERS, SIP_BYTES, SPREAD_SECONDS = 500, 4096, 8.0
PAUSE_SECONDS = 5.0
"""Before whoever was dropped comes again: some 450 connections a second."""

RIGHT = "prometheus:right"
COUNTS: Counter[str] = Counter()


def request(path: str, credentials: str, more: str = "") -> bytes:
    """One GET, compressed as Prometheus asks for it."""
    basic = base64.b64encode(credentials.encode()).decode()
    head = f"GET {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nAuthorization: Basic {basic}\r\n"
    return f"{head}{more}\r\n".encode()


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection; raises OSError."""
    try:
        async with asyncio.timeout(10):
            return await asyncio.open_connection("127.0.0.1", port)
    except (OSError, TimeoutError) as error:
        COUNTS["not connected"] += 1
        raise ConnectionError from error


async def until_dropped(port: int, begin: bytes, drip: bytes, *, reads: bool = True) -> None:
    """Connect, say `begin`, then `drip` once a second, and come again when dropped."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await connect(port)
            with contextlib.suppress(OSError):
                writer.write(begin)
                while not reader.at_eof():
                    writer.write(drip)
                    await writer.drain()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1):
                            await (reader.read(4096) if reads else asyncio.sleep(1))
            COUNTS["dropped"] += 1
            writer.transport.abort()
        await asyncio.sleep(PAUSE_SECONDS)


async def status_of(reader: asyncio.StreamReader) -> int:
    """Read one answer. Raises OSError or EOFError."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(":") for line in head)}
    await reader.readexactly(int(headers.get("content-length", "0")))
    return int(head[0].split()[1])


async def scraper(port: int, number: int) -> None:
    """Scrapes once a second over one connection, a new one when that is gone."""
    await asyncio.sleep(number / SCRAPERS)
    kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    while True:
        next_one = asyncio.get_running_loop().time() + 1
        try:
            kept = kept or await connect(port)
            kept[1].write(request("/metrics", RIGHT))
            COUNTS[f"scrape {await status_of(kept[0])}"] += 1
        except (OSError, EOFError):
            COUNTS["scrape without an answer"] += 1
            if kept is not None:
                kept[1].transport.abort()
            kept = None
        await asyncio.sleep(max(0.0, next_one - asyncio.get_running_loop().time()))


async def ask_once(port: int, what: str, asked: bytes) -> None:
    """One request over a connection of its own."""
    try:
        reader, writer = await connect(port)
        writer.write(asked)
        async with asyncio.timeout(20):
            COUNTS[f"{what} {await status_of(reader)}"] += 1
        writer.transport.abort()
    except (OSError, EOFError, TimeoutError):
        COUNTS[f"{what} without an answer"] += 1


async def often(per_second: int, ask: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Begin so many a second, however long each takes."""
    under_way: set[asyncio.Task[None]] = set()
    began = asyncio.get_running_loop().time()
    for number in itertools.count():
        if len(under_way) < 1000:
            task = asyncio.create_task(ask(number))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        # By the clock: on a busy machine a sleep takes longer than it should.
        await asyncio.sleep(max(0.0, began + (number + 1) / per_second - asyncio.get_running_loop().time()))


READERS_ASK = (
    "",
    "Accept: application/openmetrics-text; version=1.0.0\r\n",
    "Accept-Encoding: gzip\r\n",
)


async def slow_reader(port: int, number: int) -> None:
    """Ask for the whole page and sip at it; come again when dropped."""
    loop = asyncio.get_running_loop()
    asked = f"GET /metrics HTTP/1.1\r\nHost: a\r\n{READERS_ASK[number % len(READERS_ASK)]}\r\n".encode()
    await asyncio.sleep(number * SPREAD_SECONDS / READERS)
    while True:
        with contextlib.suppress(OSError), socket.socket() as client:
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SIP_BYTES)
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, asked)
            while await loop.sock_recv(client, SIP_BYTES):  # noqa: ASYNC110 - no event, a client that is slow
                await asyncio.sleep(1)
        COUNTS["reader dropped"] += 1
        await asyncio.sleep(1)


def reading(port: int) -> list[Coroutine[Any, Any, None]]:
    """Clients that hold the answer."""
    return [slow_reader(port, number) for number in range(READERS)]


def waiting(port: int) -> list[Coroutine[Any, Any, None]]:
    """Clients that hold connections."""
    body = request("/metrics", RIGHT, "Content-Length: 100000\r\n")
    kinds = (
        (IDLE, b"", b"", True),
        (SLOW_HEADS, b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Slow: ", b"x", True),
        (SLOW_BODIES, body, b"x", True),
        (SLOW_READERS, request("/", RIGHT) * 20, b"", False),
    )
    return [until_dropped(port, begin, drip, reads=reads) for n, begin, drip, reads in kinds for _ in range(n)]


def asking(port: int) -> list[Coroutine[Any, Any, None]]:
    """Clients that cause work."""

    def wrong(number: int) -> Coroutine[Any, Any, None]:
        return ask_once(port, "wrong password", request("/metrics", f"prometheus:{os.getpid()}-{number}"))

    def page(number: int) -> Coroutine[Any, Any, None]:
        return ask_once(port, "page", request(f"/?engine=e{number}", RIGHT))

    def diagnosis(_: int) -> Coroutine[Any, Any, None]:
        return ask_once(port, "diagnosis", request("/api/v1/diagnosis", RIGHT))

    often_asked = (often(WRONG_PER_SECOND, wrong), often(PAGES_PER_SECOND, page), often(PAGES_PER_SECOND, diagnosis))
    return [*(scraper(port, number) for number in range(SCRAPERS)), *often_asked]


KINDS = {"waiting": waiting, "asking": asking, "reading": reading}


async def main(port: int, kind: str, seconds: float) -> None:
    """Be rude for so long."""
    tasks = [asyncio.create_task(one) for one in KINDS[kind](port)]
    await asyncio.wait(tasks, timeout=seconds)
    json.dump(COUNTS, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # thousands of connections need no farewell


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
