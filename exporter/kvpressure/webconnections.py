"""The connections of the HTTP server: how many there may be, how long each may take, and who gives way."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler

MOST_CONNECTIONS: Final = 512
FEWEST_CONNECTIONS: Final = 8

MOST_REQUEST_BYTES: Final = 32 << 10
"""What a client may send before it is answered: a head is a few hundred bytes, and nobody has a body to send."""

MOST_UNSENT_BYTES: Final = 32 << 20
"""Answers, over all connections, that clients have asked for and do not take."""

SWEEP_SECONDS: Final = 1.0

GRACE_SECONDS: Final = 0.25
"""For so long nobody who has just come, or asked, gives way: on a busy machine it takes a moment to hear him."""


class Stage(IntEnum):
    """Where a connection is. The lower ones give way first when all places are taken."""

    ASKING = 0
    """No full request has come yet: a handshake of TLS, or half a head."""
    IDLE = 1
    """Kept alive between two requests."""
    ANSWERING = 2
    """From a request's head until its answer has left."""


SECONDS: Final[Mapping[Stage, float]] = {Stage.ASKING: 10.0, Stage.IDLE: 75.0, Stage.ANSWERING: 30.0}
"""How long a connection may be in a stage."""

FULL: Final = "full"
TOO_LONG: Final = "request_too_long"
TLS: Final = "tls_handshake"
NO_DESCRIPTOR: Final = "no_file_descriptor"
_LATE: Final[Mapping[Stage, str]] = {
    Stage.ASKING: "slow_request",
    Stage.IDLE: "",  # nobody's fault, and not counted
    Stage.ANSWERING: "slow_reader",
}
REASONS: Final = (FULL, TOO_LONG, TLS, NO_DESCRIPTOR, *(reason for reason in _LATE.values() if reason))

_Places = dict["Connection", None]


def most_connections(descriptors: int) -> int:
    """How many connections there may be when the process may open so many files (-1: any number).

    The other half of the descriptors is for polls, the GPU children, files and the moment of an accept.
    """
    return MOST_CONNECTIONS if descriptors < 0 else max(FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, descriptors // 2))


@functools.lru_cache(maxsize=4096)
def client_of(host: str) -> str:
    """Who shares the places of an address: itself, for IPv6 its /64, which a single machine has to itself."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        if address.version == 6:
            return address.packed[:8].hex()
    return host


class Connection(asyncio.Protocol):
    """One connection: stands between its transport and the protocol that speaks HTTP, and sees how far it is."""

    __slots__ = (
        "_table",
        "_transport",
        "_under_way",
        "client",
        "http",
        "last",
        "opening",
        "received",
        "stage",
        "unsent",
    )

    def __init__(self, http: asyncio.Protocol, table: Connections, client: str) -> None:
        self.http = http
        self.client = client
        self.stage = Stage.ASKING
        self.received = 0
        self.unsent = 0
        self.last = False
        self.opening: asyncio.Task[None] | None = None
        self._table = table
        self._transport: asyncio.Transport | None = None
        self._under_way = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is over; a TCP connection has none of ours."""
        self._transport = made = cast(asyncio.Transport, transport)
        # Writing is paused while anything is unsent, so that an answer ends when the kernel has all of it.
        made.set_write_buffer_limits(high=0)
        self.http.connection_made(made)

    def data_received(self, data: bytes) -> None:
        """Pass on what the client sends, unless it is more than any client has to say."""
        self.received += len(data)
        if self.received > MOST_REQUEST_BYTES:
            self._table.drop(self, TOO_LONG)
            return
        if self.stage is Stage.IDLE:
            self._table.move(self, Stage.ASKING)
        self.http.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self.http.eof_received()

    def pause_writing(self) -> None:
        """The client does not take its answer as fast as it was made."""
        if self._transport is not None:
            self.unsent = self._transport.get_write_buffer_size()
        self.http.pause_writing()
        self._table.more_unsent(self)

    def resume_writing(self) -> None:
        """The whole answer has left."""
        self._table.less_unsent(self)
        self.http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, whoever ended it."""
        self._table.remove(self)
        self._transport = None
        self.http.connection_lost(exc)

    def began(self, task: asyncio.Task[object]) -> None:
        """A request's head is complete; `task` ends when its answer has left."""
        self._under_way += 1
        self._table.move(self, Stage.ANSWERING)
        task.add_done_callback(self._answered)

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


class Connections:
    """All connections of one server on one event loop. `refused` counts those that were ended, by reason.

    When all places are taken, the client with the most of them loses the one that has been the longest in the lowest
    stage, once its grace is over. So whoever fills them all disturbs itself, and behind one address, a proxy's say,
    connections that ask nothing go before those of a Prometheus.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.unsent = 0
        self.refused = dict.fromkeys(REASONS, 0)
        self._deadlines: tuple[dict[Connection, float], ...] = tuple({} for _ in Stage)
        self._clients: dict[str, tuple[_Places, ...]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._deadlines))

    def add(self, connection: Connection) -> None:
        """A new one, for which room has been made."""
        self._place(connection)
        if self._sweeping is None:
            self._sweep()

    def has_room(self) -> bool:
        """Whether there is a place that is free, or whose holder may be made to give way."""
        return len(self) < self.most or self._victim() is not None

    def make_room(self) -> None:
        """See to it that one more can be added, where there is room."""
        while len(self) >= self.most and (victim := self._victim()) is not None:
            self.drop(victim, FULL)

    def give_way(self) -> bool:
        """End one that does not wait for an answer, to free its descriptor; False when there is none."""
        waiting = next((one for stage in self._deadlines[: Stage.ANSWERING] for one in stage), None)
        if waiting is not None:
            self.drop(waiting, FULL)
        return waiting is not None

    def move(self, connection: Connection, stage: Stage) -> None:
        """Put into another stage, with a new deadline; nothing for one that is gone."""
        if connection in self._deadlines[connection.stage]:
            self._unplace(connection)
            connection.stage = stage
            self._place(connection)

    def drop(self, connection: Connection, reason: str) -> None:
        """End a connection at once, if nobody has; a `reason` "" is not counted."""
        if connection not in self._deadlines[connection.stage]:
            return
        if reason:
            self.refused[reason] += 1
        self.remove(connection)
        connection.abort()

    def remove(self, connection: Connection) -> None:
        """Forget one that has ended; nothing when that has been done."""
        if connection in self._deadlines[connection.stage]:
            self._unplace(connection)
        self.less_unsent(connection)

    def more_unsent(self, connection: Connection) -> None:
        """A client does not take `connection.unsent` bytes; those that have had the most time for theirs give way."""
        if connection not in self._deadlines[connection.stage]:
            connection.unsent = 0
            return
        self.unsent += connection.unsent
        while self.unsent > MOST_UNSENT_BYTES:
            slow = (one for stage in reversed(self._deadlines) for one in stage if one.unsent)
            self.drop(next(slow, connection), _LATE[Stage.ANSWERING])

    def less_unsent(self, connection: Connection) -> None:
        """All of it has left, or never will."""
        self.unsent -= connection.unsent
        connection.unsent = 0

    def retire(self) -> None:
        """End all that were made under an older configuration: those being answered after their answer."""
        for waiting in [one for stage in self._deadlines[: Stage.ANSWERING] for one in stage]:
            self.drop(waiting, "")
        for answering in self._deadlines[Stage.ANSWERING]:
            answering.last = True

    def close(self) -> None:
        """End all."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in [one for stage in self._deadlines for one in stage]:
            self.drop(connection, "")

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep)
        now = loop.time()
        for stage, deadlines in zip(Stage, self._deadlines, strict=True):
            # As long a time for all of a stage: the first one's deadline is the next.
            while deadlines and deadlines[first := next(iter(deadlines))] <= now:
                self.drop(first, _LATE[stage])

    def _victim(self) -> Connection | None:
        places = max(self._clients.values(), key=_greed)
        first = next(one for stage in places for one in stage)
        stage = first.stage
        since = self._deadlines[stage][first] - SECONDS[stage]
        young = stage is not Stage.IDLE and asyncio.get_running_loop().time() < since + GRACE_SECONDS
        return None if young else first

    def _place(self, connection: Connection) -> None:
        stage = connection.stage
        self._deadlines[stage][connection] = asyncio.get_running_loop().time() + SECONDS[stage]
        places = self._clients.setdefault(connection.client, tuple({} for _ in Stage))
        places[stage][connection] = None

    def _unplace(self, connection: Connection) -> None:
        del self._deadlines[connection.stage][connection]
        places = self._clients[connection.client]
        del places[connection.stage][connection]
        if not any(places):
            del self._clients[connection.client]


def _greed(places: tuple[_Places, ...]) -> tuple[int, ...]:
    """How much one client holds: places, then those in the lowest stages."""
    return (sum(map(len, places)), *map(len, places))


@web.middleware
async def accounted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Tells a request's connection that it is being answered."""
    protocol = request.transport.get_protocol() if request.transport is not None else None
    task = asyncio.current_task()
    if isinstance(protocol, Connection) and task is not None:
        protocol.began(task)
    return await handler(request)
