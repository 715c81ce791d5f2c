"""The connections of the HTTP server: their number, deadlines and eviction."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
from collections.abc import Iterator, Mapping
from typing import Final

from kvpressure.web.connection import (
    DROP_PAUSE_SECONDS,
    DROPS_AT_ONCE,
    STAGE_TIMEOUT_SECONDS,
    TOO_LONG,
    Connection,
    SharedPages,
    Stage,
)

MAX_CONNECTIONS: Final = 512
MIN_CONNECTIONS: Final = 8

SWEEP_SECONDS: Final = 1.0

GRACE_SECONDS: Final = 0.25
"""A new connection, or one with a new request, is not evicted for so long: a busy machine may not have read it yet."""

SLOW_SECONDS: Final = 1.0
"""A client that takes longer for a response is evicted before new connections; a page is sent in a tenth of that."""

FULL: Final = "full"
TLS: Final = "tls_handshake"
NO_DESCRIPTOR: Final = "no_file_descriptor"
SLOW_READER: Final = "slow_reader"
_LATE: Final[Mapping[Stage, str]] = {
    Stage.READING: "slow_request",
    Stage.IDLE: "",  # not an error, and not counted
    Stage.WRITING: SLOW_READER,
}
REASONS: Final = (FULL, TOO_LONG, TLS, NO_DESCRIPTOR, *(reason for reason in _LATE.values() if reason))

_Places = dict[Connection, None]


def max_connections(descriptors: int) -> int:
    """Return the limit of connections for a process that may open so many files (-1: any number).

    The other half of the descriptors is for polls, GPU children, files and pending connections.
    """
    return MAX_CONNECTIONS if descriptors < 0 else max(MIN_CONNECTIONS, min(MAX_CONNECTIONS, descriptors // 2))


@functools.lru_cache(maxsize=4096)
def client_of(host: str) -> str:
    """Return the client of an address: the address itself, for IPv6 its /64, which one machine may own."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        if address.version == 6:
            return address.packed[:8].hex()
    return host


class Connections:
    """All connections of one server on one event loop. `refused` counts those that were dropped, by reason.

    When all places are taken and a client sends a request, the client with the most places loses the connection that
    has been longest in the lowest stage, after `GRACE_SECONDS`. So a client that takes all places evicts itself, and
    behind one address, such as a proxy's, connections without a request are evicted before those of a Prometheus.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.pages = SharedPages(lambda reader: self.drop(reader, SLOW_READER))
        self.refused = dict.fromkeys(REASONS, 0)
        self._deadlines: tuple[dict[Connection, float], ...] = tuple({} for _ in Stage)
        self._clients: dict[str, tuple[_Places, ...]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._deadlines))

    def add(self, connection: Connection) -> None:
        """Add a connection, for which a place is free."""
        self._place(connection)
        if self._sweeping is None:
            self._sweep()

    def free(self) -> bool:
        """Whether one more can be added."""
        return len(self) < self.limit

    def make_room(self) -> bool:
        """Evict a connection, now that no place is free; return whether one is free then."""
        if (victim := self._victim()) is not None:
            self.drop(victim, FULL)
        return self.free()

    def evict_one(self) -> None:
        """Drop a connection that does not wait for a response, where there is one, to free its descriptor."""
        if (waiting := next(self._all(Stage.WRITING), None)) is not None:
            self.drop(waiting, FULL)

    def move(self, connection: Connection, stage: Stage) -> None:
        """Put a connection into another stage, with a new deadline, unless it was removed."""
        if self.remove(connection):
            connection.stage = stage
            self._place(connection)

    def drop(self, connection: Connection, reason: str) -> None:
        """Close a connection at once, unless it was removed; a `reason` "" is not counted."""
        if self.remove(connection):
            if reason:
                self.refused[reason] += 1
            connection.abort()

    def remove(self, connection: Connection) -> bool:
        """Remove a connection; return False where it was removed before."""
        stage = connection.stage
        if connection not in self._deadlines[stage]:
            return False
        del self._deadlines[stage][connection]
        places = self._clients[connection.client]
        del places[stage][connection]
        if not any(places):
            del self._clients[connection.client]
        return True

    def retire(self) -> None:
        """Close all connections of an older configuration, those that wait for a response after it."""
        for waiting in list(self._all(Stage.WRITING)):
            self.drop(waiting, "")
        for answering in self._deadlines[Stage.WRITING]:
            answering.last = True

    def close(self) -> None:
        """Close all connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._all()):
            self.drop(connection, "")

    def _all(self, below: Stage | None = None) -> Iterator[Connection]:
        return (connection for stage in self._deadlines[:below] for connection in stage)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now, dropped = loop.time(), 0
        for stage, deadlines in zip(Stage, self._deadlines, strict=True):
            # The timeout of a stage is the same for all, so the first connection's deadline is the next.
            while dropped < DROPS_AT_ONCE and deadlines and deadlines[first := next(iter(deadlines))] <= now:
                self.drop(first, _LATE[stage])
                dropped += 1
        pause = DROP_PAUSE_SECONDS if dropped == DROPS_AT_ONCE else SWEEP_SECONDS
        self._sweeping = loop.call_later(pause, self._sweep)

    def _victim(self) -> Connection | None:
        reading, idle, writing = max(self._clients.values(), key=_places_taken)
        if reading and self._seconds_in_stage(first := next(iter(reading))) >= GRACE_SECONDS:
            return first
        # Connections that are being read are too new: idle ones, where they are more than half, or slow readers.
        if idle and (not reading or len(idle) > self.limit // 2):
            return next(iter(idle))
        limit = SLOW_SECONDS if reading else GRACE_SECONDS
        if writing and self._seconds_in_stage(first := next(iter(writing))) >= limit:
            return first
        return None

    def _seconds_in_stage(self, connection: Connection) -> float:
        since = self._deadlines[connection.stage][connection] - STAGE_TIMEOUT_SECONDS[connection.stage]
        return asyncio.get_running_loop().time() - since

    def _place(self, connection: Connection) -> None:
        stage = connection.stage
        self._deadlines[stage][connection] = asyncio.get_running_loop().time() + STAGE_TIMEOUT_SECONDS[stage]
        places = self._clients.setdefault(connection.client, tuple({} for _ in Stage))
        places[stage][connection] = None


def _places_taken(places: tuple[_Places, ...]) -> tuple[int, ...]:
    """Return the places of one client, then those in the lowest stages."""
    return (sum(map(len, places)), *map(len, places))
