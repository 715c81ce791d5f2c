"""The connections of the HTTP server: how many there may be, how long each may take, and who is evicted."""

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
"""For so long nobody who has just come, or asked, is evicted: on a busy machine it takes a moment to hear him."""

SLOW_SECONDS: Final = 1.0
"""Who takes longer for an answer is evicted before those who have just come; a page leaves in a tenth of that."""

FULL: Final = "full"
TLS: Final = "tls_handshake"
NO_DESCRIPTOR: Final = "no_file_descriptor"
SLOW_READER: Final = "slow_reader"
_LATE: Final[Mapping[Stage, str]] = {
    Stage.READING: "slow_request",
    Stage.IDLE: "",  # nobody's fault, and not counted
    Stage.WRITING: SLOW_READER,
}
REASONS: Final = (FULL, TOO_LONG, TLS, NO_DESCRIPTOR, *(reason for reason in _LATE.values() if reason))

_Places = dict[Connection, None]


def max_connections(descriptors: int) -> int:
    """How many connections there may be when the process may open so many files (-1: any number).

    The other half of the descriptors is for polls, the GPU children, files and the moment of an accept.
    """
    return MAX_CONNECTIONS if descriptors < 0 else max(MIN_CONNECTIONS, min(MAX_CONNECTIONS, descriptors // 2))


@functools.lru_cache(maxsize=4096)
def client_of(host: str) -> str:
    """Who shares the places of an address: itself, for IPv6 its /64, which a single machine has to itself."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        if address.version == 6:
            return address.packed[:8].hex()
    return host


class Connections:
    """All connections of one server on one event loop. `refused` counts those that were ended, by reason.

    When all places are taken and somebody comes who has asked something, the client with the most places loses the one
    that has been the longest in the lowest stage, once its grace is over. So whoever fills them all disturbs itself,
    and behind one address, a proxy's say, connections that ask nothing go before those of a Prometheus.
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
        """Return a new one, for which room has been made."""
        self._place(connection)
        if self._sweeping is None:
            self._sweep()

    def free(self) -> bool:
        """Whether one more can be added."""
        return len(self) < self.limit

    def make_room(self) -> bool:
        """Evict somebody for one who has asked, where no place is free; False when nobody may be evicted."""
        if not self.free() and (victim := self._victim()) is not None:
            self.drop(victim, FULL)
        return self.free()

    def evict_one(self) -> None:
        """End one that does not wait for an answer, if there is one, to free its descriptor."""
        if (waiting := next(self._all(Stage.WRITING), None)) is not None:
            self.drop(waiting, FULL)

    def move(self, connection: Connection, stage: Stage) -> None:
        """Put into another stage, with a new deadline; nothing for one that is gone."""
        if self.remove(connection):
            connection.stage = stage
            self._place(connection)

    def drop(self, connection: Connection, reason: str) -> None:
        """End a connection at once, if nobody has; a `reason` "" is not counted."""
        if self.remove(connection):
            if reason:
                self.refused[reason] += 1
            connection.abort()

    def remove(self, connection: Connection) -> bool:
        """Forget one that has ended; False when that has been done."""
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
        """End all that were made under an older configuration: those being answered after their answer."""
        for waiting in list(self._all(Stage.WRITING)):
            self.drop(waiting, "")
        for answering in self._deadlines[Stage.WRITING]:
            answering.last = True

    def close(self) -> None:
        """End all."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._all()):
            self.drop(connection, "")

    def _all(self, below: Stage | None = None) -> Iterator[Connection]:
        return (one for stage in self._deadlines[:below] for one in stage)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now, dropped = loop.time(), 0
        for stage, deadlines in zip(Stage, self._deadlines, strict=True):
            # As long a time for all of a stage: the first one's deadline is the next.
            while dropped < DROPS_AT_ONCE and deadlines and deadlines[first := next(iter(deadlines))] <= now:
                self.drop(first, _LATE[stage])
                dropped += 1
        pause = DROP_PAUSE_SECONDS if dropped == DROPS_AT_ONCE else SWEEP_SECONDS
        self._sweeping = loop.call_later(pause, self._sweep)

    def _victim(self) -> Connection | None:
        reading, idle, writing = max(self._clients.values(), key=_greed)
        if reading and self._been(first := next(iter(reading))) >= GRACE_SECONDS:
            return first
        # Those to be heard are too young: idle ones then, as long as they have more than their half, or slow readers.
        if idle and (not reading or len(idle) > self.limit // 2):
            return next(iter(idle))
        patience = SLOW_SECONDS if reading else GRACE_SECONDS
        if writing and self._been(first := next(iter(writing))) >= patience:
            return first
        return None

    def _been(self, connection: Connection) -> float:
        """Seconds in its stage."""
        since = self._deadlines[connection.stage][connection] - STAGE_TIMEOUT_SECONDS[connection.stage]
        return asyncio.get_running_loop().time() - since

    def _place(self, connection: Connection) -> None:
        stage = connection.stage
        self._deadlines[stage][connection] = asyncio.get_running_loop().time() + STAGE_TIMEOUT_SECONDS[stage]
        places = self._clients.setdefault(connection.client, tuple({} for _ in Stage))
        places[stage][connection] = None


def _greed(places: tuple[_Places, ...]) -> tuple[int, ...]:
    """How much one client holds: places, then those in the lowest stages."""
    return (sum(map(len, places)), *map(len, places))
