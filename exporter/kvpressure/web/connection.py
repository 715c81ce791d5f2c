"""One connection of the HTTP server: between its transport and the protocol that speaks HTTP, it sees how far it is.

Large answers leave in slices: whoever reads slowly holds a slice of its own, of a page that all share. aiohttp writes a
body in one piece, of which asyncio keeps a copy for each connection: 6.7 MB of metrics from 512 engines, times hundreds
of slow readers. Here the next slice is written when the one before has left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from aiohttp.typedefs import Handler

if TYPE_CHECKING:
    from kvpressure.web.connections import Connections

MAX_REQUEST_BYTES: Final = 32 << 10
"""What a client may send before it is answered: a head is a few hundred bytes, and nobody has a body to send."""


SLICE_BYTES: Final = 32 << 10
"""What one connection holds at most of an answer, over TLS up to 128 KiB: 16 MiB with all connections at once."""

MAX_PAGES_BYTES: Final = 16 << 20
"""Pages that are being sent, each counted once: two of 512 engines. Slow readers who came at different times would
otherwise keep each the page of their second."""

DROPS_AT_ONCE: Final = 4
DROP_PAUSE_SECONDS: Final = 0.005
"""Readers that are dropped in one turn of the event loop, and before the next: ending a connection takes half a
millisecond, and hundreds in one turn made a probe wait for 0.1 s and more."""


class Stage(IntEnum):
    """Where a connection is. The lower ones are evicted first when all places are taken."""

    READING = 0
    """No full request has come yet: a handshake of TLS, or half a head."""
    IDLE = 1
    """Kept alive between two requests."""
    WRITING = 2
    """From a request's head until its answer has left."""


STAGE_TIMEOUT_SECONDS: Final[Mapping[Stage, float]] = {Stage.READING: 10.0, Stage.IDLE: 75.0, Stage.WRITING: 30.0}
"""How long a connection may be in a stage."""

TOO_LONG: Final = "request_too_long"


class Connection(asyncio.Protocol):
    """Passes everything on to `http`, and tells `table` of each change of its stage."""

    __slots__ = ("_transport", "_under_way", "client", "http", "last", "opening", "received", "stage", "table")

    def __init__(self, http: asyncio.Protocol, table: Connections, client: str) -> None:
        self.http = http
        self.client = client
        self.stage = Stage.READING
        self.received = 0
        self.last = False
        self.opening: asyncio.Task[None] | None = None
        self.table = table
        self._transport: asyncio.Transport | None = None
        self._under_way = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the handshake is over; a TCP connection has none of ours."""
        self._transport = made = cast(asyncio.Transport, transport)
        # Writing is paused while anything is unsent: the next slice follows, or an answer ends, when all has left.
        # Not 0: a TLS transport then also pauses while nothing is, until the client happens to say something.
        made.set_write_buffer_limits(high=1)
        self.http.connection_made(made)

    def data_received(self, data: bytes) -> None:
        """Pass on what the client sends, unless it is more than any client has to say."""
        self.received += len(data)
        if self.received > MAX_REQUEST_BYTES:
            self.table.drop(self, TOO_LONG)
            return
        if self.stage is Stage.IDLE:
            self.table.move(self, Stage.READING)
        self.http.data_received(data)

    def eof_received(self) -> bool | None:
        """Note that the client sends no more."""
        return self.http.eof_received()

    def pause_writing(self) -> None:
        """Note that the client does not take its answer as fast as it is written."""
        self.http.pause_writing()

    def resume_writing(self) -> None:
        """All that was written has left."""
        self.http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that it is gone, whoever ended it."""
        self.table.remove(self)
        self._transport = None
        self.http.connection_lost(exc)

    def began(self, task: asyncio.Task[object]) -> None:
        """Note that a request's head is complete; `task` ends when its answer has left."""
        self._under_way += 1
        self.table.move(self, Stage.WRITING)
        task.add_done_callback(self._answered)

    def _answered(self, _: object) -> None:
        self._under_way -= 1
        if self._under_way:  # the next request was there already
            return
        self.received = 0
        self.table.move(self, Stage.IDLE)
        if self.last and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it without regard for what is unsent."""
        if self._transport is not None:
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


@web.middleware
async def accounted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers as `handler` does; the request's connection knows of it, and slices the answer."""
    protocol = request.transport.get_protocol() if request.transport is not None else None
    task = asyncio.current_task()
    if not isinstance(protocol, Connection) or task is None:
        return await handler(request)
    protocol.began(task)
    response = await handler(request)
    if isinstance(response, web.Response) and isinstance(response.body, bytes) and len(response.body) > SLICE_BYTES:
        response.body = SlicedBody(response.body, protocol, protocol.table.pages)
    return response


@dataclass(slots=True)
class _Page:
    """One that is being sent to these; the reference keeps its id from being given to another."""

    body: bytes
    readers: dict[Connection, None] = field(default_factory=dict)


class SharedPages:
    """The large pages that are being sent, bounded: the readers of the oldest are given up with `drop`."""

    def __init__(self, drop: Callable[[Connection], None]) -> None:
        self._drop = drop
        self._pages: dict[int, _Page] = {}

    @property
    def size_bytes(self) -> int:
        """Of all pages that are being sent."""
        return sum(len(page.body) for page in self._pages.values())

    @contextlib.contextmanager
    def sending(self, body: bytes, reader: Connection) -> Iterator[None]:
        """Count `body` as held by `reader`, older pages giving way to it."""
        page = self._pages.setdefault(id(body), _Page(body))
        page.readers[reader] = None
        while self.size_bytes > MAX_PAGES_BYTES and len(self._pages) > 1:
            self._drop_some(self._pages.pop(next(iter(self._pages))))
        try:
            yield
        finally:
            page.readers.pop(reader, None)
            if not page.readers and self._pages.get(id(body)) is page:
                del self._pages[id(body)]

    def _drop_some(self, page: _Page) -> None:
        for reader in list(page.readers)[:DROPS_AT_ONCE]:
            page.readers.pop(reader, None)
            self._drop(reader)
        if page.readers:
            asyncio.get_running_loop().call_later(DROP_PAUSE_SECONDS, self._drop_some, page)


class SlicedBody(Payload):
    """A body for aiohttp that is written in slices."""

    _autoclose = True
    _value: bytes

    def __init__(self, body: bytes, reader: Connection, pages: SharedPages) -> None:
        super().__init__(body)
        self._size = len(body)
        self._reader = reader
        self._pages = pages

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as text."""
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write it all, each slice when the one before has left. Raises ConnectionError."""
        body, self._value = self._value, b""  # the response may outlive its sending until a full collection of garbage
        with self._pages.sending(body, self._reader), memoryview(body) as view:
            for start in range(0, len(view), SLICE_BYTES):
                await writer.write(view[start : start + SLICE_BYTES])
                await writer.drain()
                await asyncio.sleep(0)  # a fast reader's turn ends too: the next one may be a probe's
