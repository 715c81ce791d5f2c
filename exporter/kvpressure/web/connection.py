"""One connection of the HTTP server, between its transport and the HTTP protocol: it tracks the stage of requests.

Large responses are sent in slices: a slow reader costs one slice of a page that all readers share. aiohttp writes a
body in one piece, of which asyncio keeps a copy per connection: 6.7 MB of metrics from 512 engines, times hundreds of
slow readers. Here each slice is written when the one before was sent.
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
"""What a client may send before it gets a response: a head has a few hundred bytes, and no request has a body."""

SLICE_BYTES: Final = 32 << 10
"""Memory of one connection for its response, over TLS up to 128 KiB: 16 MiB with all connections at once."""

MAX_PAGES_BYTES: Final = 16 << 20
"""Pages that are being sent, each counted once: two of 512 engines. Otherwise slow readers of different seconds would
keep a page each."""

DROPS_AT_ONCE: Final = 4
DROP_PAUSE_SECONDS: Final = 0.005
"""Connections that are dropped at once, and the pause before the next: dropping one takes half a millisecond, and
hundreds at once made a probe wait for 0.1 s and more."""


class Stage(IntEnum):
    """The stage of a connection. Lower stages are evicted first when all places are taken."""

    READING = 0
    """No complete request was received yet: a TLS handshake, or half a head."""
    IDLE = 1
    """Kept alive between two requests."""
    WRITING = 2
    """From a request's head until its response is sent."""


STAGE_TIMEOUT_SECONDS: Final[Mapping[Stage, float]] = {Stage.READING: 10.0, Stage.IDLE: 75.0, Stage.WRITING: 30.0}
"""How long a connection may stay in a stage."""

TOO_LONG: Final = "request_too_long"


class Connection(asyncio.Protocol):
    """Passes all events to `http`, and each change of stage to `table`."""

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
        """Start HTTP, after the TLS handshake where there is one."""
        self._transport = made = cast(asyncio.Transport, transport)
        # Writing is paused while anything is unsent: the next slice, or the end of a response, waits until all is sent.
        # Not 0: with that a TLS transport stays paused until the client sends something.
        made.set_write_buffer_limits(high=1)
        self.http.connection_made(made)

    def data_received(self, data: bytes) -> None:
        """Pass on what the client sends, up to `MAX_REQUEST_BYTES`."""
        self.received += len(data)
        if self.received > MAX_REQUEST_BYTES:
            self.table.drop(self, TOO_LONG)
            return
        if self.stage is Stage.IDLE:
            self.table.move(self, Stage.READING)
        self.http.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on that the client sends no more."""
        return self.http.eof_received()

    def pause_writing(self) -> None:
        """Pass on that data is unsent."""
        self.http.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that all data was sent."""
        self.http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the closed connection from the table."""
        self.table.remove(self)
        self._transport = None
        self.http.connection_lost(exc)

    def began(self, task: asyncio.Task[object]) -> None:
        """Record that a request's head is complete; `task` ends when its response is sent."""
        self._under_way += 1
        self.table.move(self, Stage.WRITING)
        task.add_done_callback(self._answered)

    def _answered(self, _: object) -> None:
        self._under_way -= 1
        if self._under_way:  # the next request was received already
            return
        self.received = 0
        self.table.move(self, Stage.IDLE)
        if self.last and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, whatever is unsent."""
        if self._transport is not None:
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


@web.middleware
async def accounted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return the response of `handler`, sent in slices; its connection tracks the request."""
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
    """A page that is being sent to `readers`; the reference keeps its id in use."""

    body: bytes
    readers: dict[Connection, None] = field(default_factory=dict)


class SharedPages:
    """The large pages that are being sent, bounded: the readers of the oldest are dropped with `drop`."""

    def __init__(self, drop: Callable[[Connection], None]) -> None:
        self._drop = drop
        self._pages: dict[int, _Page] = {}

    @property
    def size_bytes(self) -> int:
        """Bytes of all pages that are being sent."""
        return sum(len(page.body) for page in self._pages.values())

    @contextlib.contextmanager
    def sending(self, body: bytes, reader: Connection) -> Iterator[None]:
        """Count `body` as read by `reader`; drop readers of older pages where they are too many bytes."""
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
    """A body for aiohttp that is sent in slices."""

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
        """Write the body, each slice when the one before was sent. Raises ConnectionError."""
        body, self._value = self._value, b""  # the response may live until a full garbage collection
        with self._pages.sending(body, self._reader), memoryview(body) as view:
            for start in range(0, len(view), SLICE_BYTES):
                await writer.write(view[start : start + SLICE_BYTES])
                await writer.drain()
                await asyncio.sleep(0)  # also after a fast reader's slice, so that a probe need not wait
