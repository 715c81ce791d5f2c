"""What the tests of the HTTP server share: a server on the running loop, and clients that are as rude as they like."""

import asyncio
import base64
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvpressure.config.settings import WebSettings
from kvpressure.config.settings.keys import validate
from kvpressure.exposition import EngineView, Snapshot
from kvpressure.exposition.panel import Action
from kvpressure.web.server import WebServer
from tests.support.views import engine_view

SILENT = b""
METRICS = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
HALF_A_HEAD = b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Slow: "

HANG_SECONDS = 20.0
"""Only a connection that has not been ended takes so long."""


def engines(count: int) -> Snapshot:
    """A snapshot of engines of which nothing is known."""
    return Snapshot(1.0, tuple(engine_view(f"engine-{i}", t=1.0) for i in range(count)))


@dataclass
class FakeExporter:
    """Has one snapshot, advises nothing, and is ready but for `reasons`."""

    current: Snapshot = field(default_factory=lambda: engines(1))
    reasons: list[str] = field(default_factory=list)

    def snapshot(self) -> Snapshot:
        return self.current

    def advice(self, _: EngineView) -> Sequence[Action]:
        return ()

    def not_ready(self) -> list[str]:
        return self.reasons


async def anyone(header: str | None, client: str) -> bool:
    """A judge of credentials who lets everybody in."""
    return True


async def nobody(header: str | None, client: str) -> bool:
    """A judge of credentials who lets nobody in."""
    return False


@dataclass
class Client:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: bytes = METRICS) -> tuple[int, dict[str, str], bytes]:
        """Status, headers in lower case and body of the answer. Raises OSError or EOFError when there is none."""
        self.writer.write(request)
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The answer to what has been sent."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, body

    async def gone(self) -> bool:
        """Whether the server has ended it by now."""
        await settled()
        return self.reader.at_eof() or self.reader.exception() is not None


@dataclass
class Served:
    """A running server, and clients of it that end with the test."""

    server: WebServer
    port: int
    clients: contextlib.ExitStack

    async def client(self, request: bytes = SILENT, host: str = "127.0.0.1", **options: object) -> Client:
        """A connection from `host` that has sent `request`."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            self.port,
            local_addr=(host, 0),
            **options,  # type: ignore[arg-type]
        )
        self.clients.callback(_abort, writer)
        writer.write(request)
        return Client(reader, writer)

    async def get(self, path: str, credentials: str = "", host: str = "127.0.0.1") -> tuple[int, dict[str, str], bytes]:
        """An answer to a client of its own."""
        return await (await self.client(host=host)).ask(get(path, credentials))

    @property
    def refused(self) -> dict[str, int]:
        """How many were refused by reason, without those that none was refused for."""
        found = self.server.families()["web_refused_total"]
        assert isinstance(found, dict)
        return {reason: int(count) for reason, count in found.items() if count}


def get(path: str, credentials: str = "") -> bytes:
    """A request; `credentials` is user:password."""
    basic = base64.b64encode(credentials.encode()).decode()
    line = f"Authorization: Basic {basic}\r\n" if credentials else ""
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n{line}\r\n".encode()


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def settled() -> None:
    """Whatever is on its way on loopback arrives; on virtual time it takes none."""
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)


async def reads_nothing(served: Served) -> socket.socket:
    """Asks for a page and leaves it where it is; a small buffer keeps the kernel from taking it."""
    client = socket.socket()
    served.clients.enter_context(client)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        client.connect(("127.0.0.1", served.port))
    await settled()
    client.send(METRICS)
    await settled()
    return client


def ended(client: socket.socket) -> bool:
    """Whether the server has ended it, once all is read that the kernel still has for it."""
    client.settimeout(HANG_SECONDS)
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@contextlib.asynccontextmanager
async def serving(
    exporter: FakeExporter | None = None, most: int | None = None, config: Path | None = None
) -> AsyncIterator[Served]:
    """A server on loopback with room for `most` connections."""
    settings = validate(WebSettings, {"listen_address": "127.0.0.1:0", "config_file": config})
    server = WebServer(exporter or FakeExporter(), settings)
    if most is not None:
        server.connections.limit = most
    [url] = await server.start()
    with contextlib.ExitStack() as clients:
        yield Served(server, int(url.rpartition(":")[2]), clients)
    await server.close()
