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

from kvpressure.config.settings import ListenAddress
from kvpressure.seldom import Seldom
from kvpressure.webconnections import FULL, NO_DESCRIPTOR, SECONDS, TLS, Connection, Connections, Stage, client_of

BACKLOG: Final = 4096
AT_ONCE: Final = 32
"""Accepted before what the others sent is looked at; as many who have spoken, and as many who have not, are kept
waiting for a place. An eighth of all places where those are few, because each has a descriptor."""

ROUNDS: Final = 4
"""How often so many are accepted in a row: those who go at once cost little."""

FULL_SECONDS: Final = 0.02
STARVED_SECONDS: Final = 0.2
"""When to look again for a place, and for a file descriptor."""

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
        self._again: asyncio.TimerHandle | None = None
        self._lobby: list[tuple[socket.socket, str]] = []
        self._at_once = max(4, min(AT_ONCE, connections.most // 8))

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
        if self._again is not None:
            self._again.cancel()
        for one in self._sockets:
            self._loop.remove_reader(one)
            one.close()
        self._sockets.clear()
        for one, _ in self._lobby:
            one.close()
        self._lobby.clear()

    def _ready(self, listening: socket.socket) -> None:
        for _ in range(ROUNDS):
            more = self._accept(listening)
            if not self._admit() or not more:
                break

    def _accept(self, listening: socket.socket) -> bool:
        """Some into the lobby; whether there may be more."""
        for _ in range(self._at_once):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return False
            except OSError as error:
                self._failed(error)
                return False
            accepted.setblocking(False)
            self._lobby.append((accepted, client_of(address[0])))
        return True

    def _admit(self) -> bool:
        """Give those in the lobby the places there are; when it overflows too, those go who have said nothing.

        Whoever wants something has said so by the time it is his turn. Gives whether more may be accepted.
        """
        while self._lobby and self._connections.has_room():
            # Without a crowd there is one, who need not be looked at.
            first = next((one for one in self._lobby if _has_spoken(one[0])), None) if len(self._lobby) > 1 else None
            first = first or self._lobby[0]
            self._lobby.remove(first)
            self._take(*first)
        speakers = [one for one in self._lobby if _has_spoken(one[0])]
        silent = [one for one in self._lobby if one not in speakers]
        for one in silent[: max(0, len(silent) - self._at_once)]:
            self._connections.refused[FULL] += 1
            self._lobby.remove(one)
            one[0].close()
        crowded = len(speakers) >= self._at_once
        if self._lobby:
            self._look_again(FULL_SECONDS, pause=crowded)
        return not crowded

    def _take(self, accepted: socket.socket, client: str) -> None:
        self._connections.make_room()
        connection = Connection(self._make(), self._connections, client)
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
        self._look_again(STARVED_SECONDS, pause=True)

    def _look_again(self, seconds: float, *, pause: bool) -> None:
        """Soon; until then, with `pause`, whoever comes stays in the kernel's queue."""
        if pause:
            for one in self._sockets:
                self._loop.remove_reader(one)
        if self._again is None:
            self._again = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._again = None
        for one in self._sockets:
            self._loop.add_reader(one, self._ready, one)
        self._admit()


def _has_spoken(accepted: socket.socket) -> bool:
    try:
        return bool(accepted.recv(1, socket.MSG_PEEK))
    except OSError:  # nothing yet, or gone
        return False


def _close_cancelled(accepted: socket.socket, task: asyncio.Task[None]) -> None:
    # One that is cancelled before its first step has no transport that would close it.
    if task.cancelled():
        accepted.close()
