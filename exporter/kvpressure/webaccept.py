"""Takes connections from listening sockets: a few at a time, and calmly when there is no file descriptor left.

Not `loop.create_server`: it accepts a whole backlog at once, whatever that displaces, and on each failed accept writes
a traceback, tries on, and stops listening for a second.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
import ssl
from collections.abc import Callable
from typing import Final

import structlog

from kvpressure.seldom import Seldom
from kvpressure.settings import ListenAddress
from kvpressure.webconnections import NO_DESCRIPTOR, SECONDS, TLS, Connection, Connections, Stage, client_of

BACKLOG: Final = 1024
AT_ONCE: Final = 32
"""Accepted before what the others sent is looked at, or a quarter of all places where those are few: the descriptors of
as many that gave way are still open then."""

FULL_SECONDS: Final = 0.02
STARVED_SECONDS: Final = 0.2
"""Pauses while everybody who is connected is still to be heard, and while there is no file descriptor."""

GOODBYE_SECONDS: Final = 2.0
"""How long a client may take to answer that a TLS connection ends."""

_NOT_HERE: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_STARVED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = structlog.get_logger("kvpressure.server")


class Acceptor:
    """Accepts into `connections`, each spoken to by a protocol that `make` makes, under the `context` of the moment."""

    def __init__(
        self, connections: Connections, make: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None
    ) -> None:
        self.context = context
        self._connections = connections
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._seldom = Seldom(log.warning, self._loop.time)
        self._sockets: list[socket.socket] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None

    async def listen(self, address: ListenAddress) -> int:
        """Listen there, on every interface for a host "". Gives the port; raises OSError."""
        found = await self._loop.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound: list[socket.socket] = []
        missing: OSError | None = None
        for family, _, _, _, place in dict.fromkeys(found):
            try:
                bound.append(socket.create_server(place, family=family, backlog=BACKLOG))
            except OSError as error:
                if address.host or error.errno not in _NOT_HERE:
                    for one in bound:
                        one.close()
                    raise
                missing = error  # a machine without IPv6 may still name its addresses
        if missing is not None and not bound:
            raise missing
        for one in bound:
            one.setblocking(False)
            self._loop.add_reader(one, self._ready, one)
        self._sockets += bound
        return int(bound[-1].getsockname()[1])

    def close(self) -> None:
        """Stop listening."""
        if self._resuming is not None:
            self._resuming.cancel()
        for one in self._sockets:
            self._loop.remove_reader(one)
            one.close()
        self._sockets.clear()

    def _ready(self, listening: socket.socket) -> None:
        for _ in range(min(AT_ONCE, self._connections.most // 4)):
            if not self._connections.has_room():
                self._pause(FULL_SECONDS)
                return
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._failed(error)
                return
            accepted.setblocking(False)
            self._connections.make_room()
            connection = Connection(self._make(), self._connections, client_of(address[0]))
            task = self._loop.create_task(self._open(connection, accepted))
            connection.opening = task
            self._connections.add(connection)
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            task.add_done_callback(functools.partial(_close_cancelled, accepted))

    async def _open(self, connection: Connection, accepted: socket.socket) -> None:
        patience = SECONDS[Stage.ASKING]
        try:
            if self.context is None:
                await self._loop.connect_accepted_socket(lambda: connection, accepted)
            else:
                await self._loop.connect_accepted_socket(
                    lambda: connection,
                    accepted,
                    ssl=self.context,
                    ssl_handshake_timeout=patience,
                    ssl_shutdown_timeout=GOODBYE_SECONDS,
                )
        except OSError:  # what is wrong with a handshake is one too
            self._connections.drop(connection, TLS)
            accepted.close()

    def _failed(self, error: OSError) -> None:
        """Wait a moment when descriptors are short, and give one back if anybody holds one for nothing."""
        if error.errno not in _STARVED:  # the network's fault, with this one connection
            self._seldom("a connection was lost before it was accepted", error=error.strerror)
            return
        self._connections.refused[NO_DESCRIPTOR] += 1
        self._connections.give_way()
        self._seldom(
            "no connection can be accepted: raise the limit of open files (LimitNOFILE, ulimit -n)",
            error=error.strerror,
            connections=len(self._connections),
        )
        self._pause(STARVED_SECONDS)

    def _pause(self, seconds: float) -> None:
        """Leave whoever comes in the kernel's queue for a moment."""
        if self._resuming is None:
            for one in self._sockets:
                self._loop.remove_reader(one)
            self._resuming = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._resuming = None
        for one in self._sockets:
            self._loop.add_reader(one, self._ready, one)


def _close_cancelled(accepted: socket.socket, task: asyncio.Task[None]) -> None:
    # One that is cancelled before its first step has no transport that would close it.
    if task.cancelled():
        accepted.close()
