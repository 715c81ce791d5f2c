"""Accepts connections from listening sockets: a few at a time, and also when there is no file descriptor left.

Not with aiohttp's sites, nor the `loop.create_server` below them: these accept a whole backlog at once, whatever that
evicts, log a traceback for each failed accept, and then stop listening for a second (decision 0120).
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
"""In a longer queue, the last clients would have timed out before their turn."""

MAX_PENDING: Final = 64
"""Connections that are accepted and have no place yet; others wait in the kernel's queue. At most a quarter of all
places, because each has a descriptor."""

PENDING_TIMEOUT_SECONDS: Final = 0.02
"""How long a client may take to send a request when all places are taken, and the pause between two attempts."""

SEND_BUFFER_BYTES: Final = 64 << 10
"""Of a response, in the kernel, which doubles it and charges the pod for it: 64 MiB with all connections at once, where
its default of 4 MiB each would be 2 GiB."""

STARVED_SECONDS: Final = 0.2
"""Pause after an accept that failed for want of a file descriptor."""

TLS_SHUTDOWN_SECONDS: Final = 2.0
"""How long a client may take to confirm the end of a TLS connection."""

HANDSHAKE_MARGIN_SECONDS: Final = 5.0
"""Stalled handshakes are ended and counted by `Connections`, a few in a turn; asyncio's own limit comes after that."""

_TLS_TIMEOUTS: Final = {
    "ssl_handshake_timeout": STAGE_TIMEOUT_SECONDS[Stage.READING] + HANDSHAKE_MARGIN_SECONDS,
    "ssl_shutdown_timeout": TLS_SHUTDOWN_SECONDS,
}

_CLOSE_WAIT: Final = 8
"""Linux' `TCP_CLOSE_WAIT`: the client has ended the connection."""

_NOT_HERE: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_STARVED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = structlog.get_logger("kvpressure.web")


def has_request(pending: socket.socket) -> bool:
    """Return whether the client has sent data and still waits for a response."""
    try:
        state = pending.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return state != _CLOSE_WAIT and bool(pending.recv(1, socket.MSG_PEEK))
    except OSError:  # nothing yet, or gone
        return False


class Acceptor:
    """Accepts into `connections`, each with a new protocol of `make` and the present TLS `context`."""

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
        """Listen on `address`, on every interface for a host "", and for :: with IPv4 too; return the port.

        Raises OSError.
        """
        addresses = await self._loop.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound: list[socket.socket] = []
        missing: OSError | None = None
        for family, _, _, _, place in dict.fromkeys(addresses):
            try:
                both = place[0] == "::" and bool(address.host) and socket.has_dualstack_ipv6()
                bound.append(socket.create_server(place, family=family, backlog=BACKLOG, dualstack_ipv6=both))
            except OSError as error:
                if address.host or error.errno not in _NOT_HERE:
                    for listener in bound:
                        listener.close()
                    raise
                missing = error  # a machine without IPv6 may still name its addresses
        if missing is not None and not bound:
            raise missing
        for listener in bound:
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # inherited by its connections
            self._start(self._accept(listener))
        self._sockets += bound
        return int(bound[-1].getsockname()[1])

    def close(self) -> None:
        """Stop listening, and close connections that have no place yet."""
        for task in self._tasks:
            task.cancel()
        for listening in self._sockets:
            self._loop.remove_reader(listening)  # the cancelled wait for it ends later
            listening.close()
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
        """Serve the connection once it has a place; close it when it gets none."""
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
        except OSError:  # also of a TLS handshake
            self._connections.drop(connection, TLS)
            pending.close()

    async def _admitted(self, pending: socket.socket) -> bool:
        """Wait for a place, which a client with a request may get by eviction; return False where it gets none."""
        timeout = self._loop.time() + PENDING_TIMEOUT_SECONDS
        while not self._connections.free():
            requested = has_request(pending)
            if requested and self._connections.make_room():
                break
            if not requested and self._loop.time() >= timeout:
                return False
            await asyncio.sleep(PENDING_TIMEOUT_SECONDS)
        return True

    async def _failed(self, error: OSError) -> None:
        """Log a failed accept; where descriptors are short, evict an idle connection and wait."""
        if error.errno not in _STARVED:  # an error of the network, with this connection alone
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
    # A task that was cancelled before its first step, or without a place, has no transport that closes the socket.
    if task.cancelled():
        accepted.close()
