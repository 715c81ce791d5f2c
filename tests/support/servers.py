"""Metrics servers on ephemeral loopback ports: one that replays recorded pages, and ones that do everything wrong.

A server is a behaviour: a coroutine function that gets the request and a writer. `FaultServer` can change its
behaviour, stop and come back on the same port while it runs, and remembers what it was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import lzma
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

Behaviour = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]
MIB = 1024 * 1024


@dataclass(frozen=True)
class Request:
    target: str
    headers: dict[str, str]
    connection: int
    method: str = "GET"
    body: bytes = b""

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(parse_qs(urlsplit(self.target).query).get("name[]", ()))


@dataclass
class FaultServer:
    """`async with FaultServer(behaviour) as server`: listens until the block ends. Raising ConnectionError in a
    behaviour, or returning after `writer.close()`, ends the connection; otherwise it is kept alive."""

    behaviour: Behaviour
    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    async def __aenter__(self) -> FaultServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(self._accept, self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse from now on and break every open connection."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        await self.break_connections()
        await server.wait_closed()

    async def break_connections(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer, self.connections))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while not writer.is_closing():
                    first = await reader.readexactly(1)
                    if not first.isalpha():  # a TLS handshake, for one
                        writer.write(answer(b"", "400 Bad Request"))
                        return
                    request = _parse(first + await reader.readuntil(b"\r\n\r\n"), connection)
                    if length := int(request.headers.get("content-length", "0")):
                        request = replace(request, body=await reader.readexactly(length))
                    self.requests.append(request)
                    await self.behaviour(request, writer)
                    await writer.drain()
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()


def _parse(head: bytes, connection: int) -> Request:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    method, target, _ = first.split(" ", 2)
    return Request(target, {name.lower(): value.strip() for name, _, value in pairs}, connection, method)


def answer(body: bytes, status: str = "200 OK", headers: Sequence[str] = (), length: int | None = None) -> bytes:
    """A whole HTTP answer; `length` is the Content-Length it claims, right by default."""
    claimed = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {claimed}", "Content-Type: text/plain", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def always(*parts: bytes, then: Literal["keep", "close"] = "keep") -> Behaviour:
    """Writes the same bytes for each request."""

    async def behave(_: Request, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
        if then == "close":
            writer.close()

    return behave


def page(body: bytes) -> Behaviour:
    """The same page whatever is asked: a server that ignores `name[]`."""
    return always(answer(body))


def error(status: str = "500 Internal Server Error") -> Behaviour:
    return always(answer(b"went wrong\n", status))


def html() -> Behaviour:
    return always(answer(b"<!doctype html><html><body>Welcome to nginx!</body></html>\n"))


def json_answer() -> Behaviour:
    return always(answer(b'{"detail": "Not here"}\n'))


def empty() -> Behaviour:
    return always(answer(b""))


def redirect(location: str) -> Behaviour:
    return always(answer(b"", "307 Temporary Redirect", [f"Location: {location}"]))


def half_page(body: bytes, *, honest_length: bool) -> Behaviour:
    """The first half of a page, cut within a line."""
    half = body[: len(body) // 2].rstrip(b"\n")
    return always(answer(half, length=None if honest_length else len(body)), then="close")


def half_chunked(body: bytes) -> Behaviour:
    """A chunked answer that ends without its last chunk."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return always(head, b"%x\r\n" % len(body), body, b"\r\n", then="close")


def closes_at_once() -> Behaviour:
    return always(then="close")


def bad_status_line() -> Behaviour:
    return always(b"SSH-2.0-OpenSSH_9.2p1\r\n", then="close")


def gzip_bomb(size_bytes: int = 100 * MIB) -> Behaviour:
    """A small body that would unpack to `size_bytes`."""
    packed = gzip.compress(bytes(size_bytes), 1)
    return always(answer(packed, headers=["Content-Encoding: gzip"]))


async def hangs(_: Request, __: asyncio.StreamWriter) -> None:
    """Takes the request and never answers."""
    await asyncio.Event().wait()


async def hangs_after_headers(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    await hangs(request, writer)


def drips(body: bytes, every_seconds: float = 1.0) -> Behaviour:
    """A byte at a time: always alive, never done."""

    async def behave(_: Request, writer: asyncio.StreamWriter) -> None:
        for byte in answer(body):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(every_seconds)

    return behave


def floods(size_bytes: int = 100 * MIB, *, with_length: bool = False) -> Behaviour:
    """More than anybody should read, streamed as fast as it is taken."""

    async def behave(_: Request, writer: asyncio.StreamWriter) -> None:
        length = f"Content-Length: {size_bytes}" if with_length else "Transfer-Encoding: chunked"
        writer.write(f"HTTP/1.1 200 OK\r\n{length}\r\n\r\n".encode())
        block = b"vllm:num_requests_running 1.0\n" * 2184
        for _block in range(size_bytes // len(block) + 1):
            writer.write(block if with_length else b"%x\r\n%b\r\n" % (len(block), block))
            await writer.drain()

    return behave


async def endless_headers(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in itertools.count():
        writer.write(b"X-Padding-%d: %b\r\n" % (number, b"x" * 1000))
        await writer.drain()
        await asyncio.sleep(0)


async def endless_continues(_: Request, writer: asyncio.StreamWriter) -> None:
    """Interim answers for ever, and never the final one."""
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
        await writer.drain()
        await asyncio.sleep(0)


async def tiny_chunks(_: Request, writer: asyncio.StreamWriter) -> None:
    """A body in chunks of one byte: six bytes to parse for each that counts against a cap."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\nx\r\n" * 500)
        await writer.drain()
        await asyncio.sleep(0)


def restrict(body: bytes, names: Sequence[str]) -> bytes:
    """The page that prometheus_client's own app answers for `name[]`: those samples, with their family's comments."""
    wanted = {name.encode() for name in names}
    kept: list[bytes] = []
    comments: list[bytes] = []
    for line in body.splitlines(keepends=True):
        if line.startswith(b"#"):
            if line.startswith(b"# HELP"):
                comments = []
            comments.append(line)
        elif line.partition(b"{")[0].partition(b" ")[0] in wanted:
            kept += [*comments, line]
            comments = []
    return b"".join(kept)


Filter = Literal["honours", "ignores", "empty", "missing"]


@dataclass
class Replay:
    """A recorded server: one page per request, or per second of the trace where a clock is given; the last one stays.

    `filter` is what it makes of `/metrics/?name[]=…`: vLLM with one process honours it, with several answers an
    empty 200; others ignore it or do not know the path.
    """

    pages: Sequence[tuple[float, bytes]]
    filter: Filter = "honours"
    clock: Callable[[], float] | None = None
    began: float | None = None
    served: int = 0

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        filtered = request.path.endswith("/")
        if filtered and self.filter == "missing":
            writer.write(answer(b"", "404 Not Found"))
        elif filtered and self.filter == "empty":
            writer.write(answer(b""))
        else:
            body = self._page()
            writer.write(answer(restrict(body, request.names) if filtered and self.filter == "honours" else body))

    def _page(self) -> bytes:
        if self.clock is None:
            self.served += 1
            return self.pages[min(self.served, len(self.pages)) - 1][1]
        now = self.clock()
        self.began = now if self.began is None else self.began
        elapsed = now - self.began
        begun = [body for t, body in self.pages if t - self.pages[0][0] <= elapsed]
        self.served += 1
        return begun[-1]


def read_trace(path: Path) -> list[tuple[float, bytes]]:
    """The times and pages of a recording (`tests/fixtures/traces/*.jsonl.xz`)."""
    with lzma.open(path, "rt") as lines:
        return [(record["t"], record["page"].encode()) for record in map(json.loads, lines)]
