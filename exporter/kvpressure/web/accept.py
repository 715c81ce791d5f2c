"""Takes connections from listening sockets: a few at a time, and calmly when there is no file descriptor left.

Not aiohttp's sites, nor the `loop.create_server` below them: these accept a whole backlog at once, whatever that
evicts, write a traceback for each failed accept, and then stop listening for a second (decision 0401).
"""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from kvpressure.config.settings import ListenAddress
from kvpressure.logs import RateLimitedLogger
from kvpressure.web.connection import STAGE_TIMEOUT_SECONDS, Connection, Stage
from kvpressure.web.connections import FULL, NO_DESCRIPTOR, TLS, Connections, client_of

BACKLOG: Final = 2048
"""Longer, and those at its end would have given up by the time it is their turn."""

MAX_PENDING: Final = 64
"""Accepted and without a place; the rest wait in the kernel's queue. A quarter of all places where those are few,
because each has a descriptor."""

PENDING_TIMEOUT_SECONDS: Final = 0.02
"""Time to say something after having connected, when all places are taken, and when to look again for one."""

SEND_BUFFER_BYTES: Final = 64 << 10
"""Of an answer, in the kernel. It doubles it and charges the pod for it: 64 MiB with all connections at once, where its
own 4 MiB for each would be 2 GiB."""

STARVED_SECONDS: Final = 0.2
"""When to look again for a file descriptor."""

GOODBYE_SECONDS: Final = 2.0
"""How long a client may take to answer that a TLS connection ends."""

HANDSHAKE_MARGIN_SECONDS: Final = 5.0
"""Stalled handshakes are ended and counted by `Connections`, a few in a turn; asyncio's own limit comes after that."""

_TLS_TIMEOUTS: Final = {
    "ssl_handshake_timeout": STAGE_TIMEOUT_SECONDS[Stage.READING] + HANDSHAKE_MARGIN_SECONDS,
    "ssl_shutdown_timeout": GOODBYE_SECONDS,
}

_CLOSE_WAIT: Final = 8
"""Linux' `TCP_CLOSE_WAIT`: the client has ended the connection."""

_NOT_HERE: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_STARVED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = structlog.get_logger("kvpressure.web")


def has_spoken(pending: socket.socket) -> bool:
    """Whether the client has said something and still waits for what it asked for."""
    try:
        state = pending.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return state != _CLOSE_WAIT and bool(pending.recv(1, socket.MSG_PEEK))
    except OSError:  # nothing yet, or gone
        return False


class Acceptor:
    """Accepts into `connections`, each spoken to by a protocol that `make` makes, under the `context` of the moment."""

    def __init__(
        self, connections: Connections, make: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None
    ) -> None:
        self.context = context
        self._connections = connections
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._logger = RateLimitedLogger(log.warning, self._loop.time)
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending = asyncio.Semaphore(max(4, min(MAX_PENDING, connections.limit // 4)))

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
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # what is accepted inherits it
            self._start(self._accept(one))
        self._sockets += bound
        return int(bound[-1].getsockname()[1])

    def close(self) -> None:
        """Stop listening, and give up those who have no place yet."""
        for task in self._tasks:
            task.cancel()
        for one in self._sockets:
            self._loop.remove_reader(one)  # the cancelled wait for it ends in a later turn of the loop
            one.close()
        self._sockets.clear()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(listening)
            except OSError as error:
                await self._failed(error)
                continue
            try:
                await self._pending.acquire()
            except asyncio.CancelledError:
                accepted.close()
                raise
            task = self._start(self._open(accepted, client_of(address[0])))
            task.add_done_callback(functools.partial(_close_cancelled, accepted))

    async def _open(self, pending: socket.socket, client: str) -> None:
        """Speak with it once it has a place; close it when it gets none."""
        try:
            admitted = await self._admitted(pending)
        finally:
            self._pending.release()
        if not admitted:
            self._connections.refused[FULL] += 1
            pending.close()
            return
        connection = Connection(self._make(), self._connections, client)
        connection.opening = asyncio.current_task()
        self._connections.add(connection)
        tls: dict[str, Any] = {} if self.context is None else {"ssl": self.context, **_TLS_TIMEOUTS}
        try:
            await self._loop.connect_accepted_socket(lambda: connection, pending, **tls)
        except OSError:  # what is wrong with a handshake is one too
            self._connections.drop(connection, TLS)
            pending.close()

    async def _admitted(self, pending: socket.socket) -> bool:
        """Whether there is a place: a free one, or one that is made for whoever has asked something."""
        silent_until = self._loop.time() + PENDING_TIMEOUT_SECONDS
        while not self._connections.free():
            spoken = has_spoken(pending)
            if spoken and self._connections.make_room():
                break
            if not spoken and self._loop.time() >= silent_until:
                return False
            await asyncio.sleep(PENDING_TIMEOUT_SECONDS)
        return True

    async def _failed(self, error: OSError) -> None:
        """Wait a moment when descriptors are short, and give one back if anybody holds one for nothing."""
        if error.errno not in _STARVED:  # the network's fault, with this one connection
            self._logger("a connection was lost before it was accepted", error=error.strerror)
            return
        self._connections.refused[NO_DESCRIPTOR] += 1
        self._connections.evict_one()
        self._logger(
            "no connection can be accepted: raise the limit of open files (LimitNOFILE, ulimit -n)",
            error=error.strerror,
            connections=len(self._connections),
        )
        await asyncio.sleep(STARVED_SECONDS)


def _close_cancelled(accepted: socket.socket, task: asyncio.Task[None]) -> None:
    # One that is cancelled before its first step, or without a place, has no transport that would close it.
    if task.cancelled():
        accepted.close()
