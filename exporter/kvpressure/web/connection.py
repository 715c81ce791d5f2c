"""One connection of the HTTP server: between its transport and the protocol that speaks HTTP, it sees how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from kvpressure.web.slices import SLICE_BYTES, SlicedBody

if TYPE_CHECKING:
    from kvpressure.web.connections import Connections

MAX_REQUEST_BYTES: Final = 32 << 10
"""What a client may send before it is answered: a head is a few hundred bytes, and nobody has a body to send."""


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

    __slots__ = ("_table", "_transport", "_under_way", "client", "http", "last", "opening", "received", "stage")

    def __init__(self, http: asyncio.Protocol, table: Connections, client: str) -> None:
        self.http = http
        self.client = client
        self.stage = Stage.READING
        self.received = 0
        self.last = False
        self.opening: asyncio.Task[None] | None = None
        self._table = table
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
            self._table.drop(self, TOO_LONG)
            return
        if self.stage is Stage.IDLE:
            self._table.move(self, Stage.READING)
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
        self._table.remove(self)
        self._transport = None
        self.http.connection_lost(exc)

    def began(self, task: asyncio.Task[object]) -> None:
        """Note that a request's head is complete; `task` ends when its answer has left."""
        self._under_way += 1
        self._table.move(self, Stage.WRITING)
        task.add_done_callback(self._answered)

    def sliced(self, response: web.StreamResponse) -> web.StreamResponse:
        """Return the response, a large body written in slices."""
        if isinstance(response, web.Response) and isinstance(response.body, bytes) and len(response.body) > SLICE_BYTES:
            response.body = SlicedBody(response.body, self, self._table.pages)
        return response

    def _answered(self, _: object) -> None:
        self._under_way -= 1
        if self._under_way:  # the next request was there already
            return
        self.received = 0
        self._table.move(self, Stage.IDLE)
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
    return protocol.sliced(await handler(request))
