"""When a source is read: clocks, ticks at a fixed rate with a phase per source, and bounded back-off."""

from __future__ import annotations

import asyncio
import math
import time
import zlib
from typing import Final, Protocol

from kvpressure.model.errors import DnsError, InternalError, TimedOutError, TlsError, TooLargeError
from kvpressure.model.record import record

MAX_DEADLINE_SECONDS: Final = 10.0

GROUPS: Final = 4
"""Of 64 engines 16 are read in a row, in 30 ms: a third less CPU than if all 64 were spread evenly."""

DEADLINE_SHARE: Final = 0.8

COSTLY: Final = (TimedOutError, DnsError, TlsError, TooLargeError, InternalError)
"""Errors with back-off: each costs a connection, a lookup, a handshake or megabytes of a server in trouble.

Other errors, such as a refused connection, cost little, and a read at every tick finds the restart soon.
"""

BACKOFF_SECONDS: Final = 5.0
"""The longest time between two attempts at an engine."""


class Clock(Protocol):
    """All that a source knows of time; tests pass a virtual clock."""

    def wall(self) -> float:
        """Return unix seconds, for the `t` of samples."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never jumps, for schedules and durations."""

    async def sleep_until(self, monotonic_seconds: float) -> None:
        """Wait until that time of `monotonic`; return at once if it has passed."""


class SystemClock:
    """The machine's clocks (the event loop's own clock is `time.monotonic` too)."""

    def wall(self) -> float:
        """Return unix seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds since some fixed moment."""
        return time.monotonic()

    async def sleep_until(self, monotonic_seconds: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(max(0.0, monotonic_seconds - time.monotonic()))


def spread(name: str) -> float:
    """Return the phase of the source's ticks as a share of the interval, 0 ≤ share < 1: the same after each restart.

    There are `GROUPS` phases: targets polled together are processed in a row, and the processor sleeps longer between.
    """
    return zlib.crc32(name.encode()) % GROUPS / GROUPS


def default_deadline_seconds(interval_seconds: float) -> float:
    """Return how long one reading may take: less than the interval, so that a slow one does not delay the next tick."""
    return min(MAX_DEADLINE_SECONDS, DEADLINE_SHARE * interval_seconds)


@record
class Ticks:
    """Ticks at a fixed rate on the monotonic clock: tick `n` is due at `(n + share) * interval_seconds`."""

    interval_seconds: float
    share: float

    def due(self, tick: int) -> float:
        """Return when that tick is due, in monotonic seconds."""
        return (tick + self.share) * self.interval_seconds

    def upcoming(self, now: float) -> int:
        """Return the first tick that is not in the past at `now`."""
        return math.ceil(now / self.interval_seconds - self.share)


def backoff_ticks(failures: int, interval_seconds: float, limit_seconds: float = BACKOFF_SECONDS) -> int:
    """Return the ticks to skip after `failures` failures in a row: 0, 0, 1, 3, ..., at most `limit_seconds` apart."""
    if failures < 2:
        return 0
    wait = min(limit_seconds, interval_seconds * 2.0 ** min(failures - 1, 16))
    return max(0, math.floor(wait / interval_seconds) - 1)
