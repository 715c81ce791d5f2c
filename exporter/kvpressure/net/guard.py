"""The guard that every source runs in: schedule, deadline, health, back-off and one log line per change of state.

A source is a coroutine function that returns one reading or raises `SourceError`. Its guard turns every outcome into a
value or a `SourceHealth`; no error of a source ends the task that polls it.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

import structlog

from kvpressure.model.errors import SourceError, TimedOutError
from kvpressure.model.samples import SourceHealth
from kvpressure.net.budget import Share
from kvpressure.net.schedule import (
    COSTLY,
    Clock,
    SystemClock,
    Ticks,
    backoff_ticks,
    default_deadline_seconds,
    spread,
)
from kvpressure.net.threads import bug
from kvpressure.printable import brief

T = TypeVar("T")

LATE_SHARE: Final = 0.5
FIRST_POLL_SPREAD_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 3.0
"""After which a first attempt that is still under way is said to get no answer."""
KEPT_DURATIONS: Final = 60
"""A minute of polls at 1 Hz: how slow a source is now."""

log = structlog.get_logger("kvpressure.sources")

MAX_ERROR_LENGTH: Final = 400
MAX_REASONS: Final = 64
"""Each is a series."""


class Health:
    """The outcome of the last reading, as `latest`; its `reason` is "pending" before the first. Unix seconds."""

    def __init__(self, source: str, target: str, t: float, error: str = "not read yet") -> None:
        self._errors: Counter[str] = Counter()
        self.latest = SourceHealth(source, target, False, t, error=error, reason="pending")

    def count(self, reason: str) -> None:
        """Count an error within a reading that succeeded; of a source gone mad, those of too many kinds as "other"."""
        self._errors[reason if reason in self._errors or len(self._errors) < MAX_REASONS else "other"] += 1

    def up(self, t: float, duration_seconds: float = math.nan) -> None:
        """Record a reading that succeeded."""
        before = self.latest
        self.latest = SourceHealth(
            before.source, before.target, True, t, duration_seconds, t, errors=dict(self._errors)
        )

    def down(self, t: float, error: SourceError, duration_seconds: float = math.nan, *, counted: bool = True) -> None:
        """Record a reading that failed."""
        before, sentence = self.latest, brief(error.sentence, MAX_ERROR_LENGTH)
        if counted:
            self.count(error.reason)
        failed = (False, t, duration_seconds, before.last_success, sentence, error.reason, dict(self._errors))
        self.latest = SourceHealth(before.source, before.target, *failed)


@dataclass(slots=True)
class PollCounts:
    """The polls of a source.

    `polls` counts attempts, `late` those that began more than half an interval after their tick, `missed` the ticks
    that were skipped because the attempt before was still running or the loop was busy (not those of back-off).
    """

    polls: int = 0
    late: int = 0
    missed: int = 0


class Guard(Generic[T]):
    """Runs one source's readings and keeps its health; none of them while its `share` of the budget is used up.

    `deadline_seconds` is measured on the event loop's clock, also with a virtual `clock`; `silence` begins the error of
    a reading that exceeded it.
    """

    def __init__(
        self,
        source: str,
        target: str,
        *,
        interval_seconds: float,
        deadline_seconds: float | None = None,
        clock: Clock | None = None,
        silence: str = "no answer",
        share: Share | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._share = share
        self._clock: Clock = clock or SystemClock()
        self._ticks = Ticks(interval_seconds, spread(target or source))
        self.deadline_seconds = deadline_seconds or default_deadline_seconds(interval_seconds)
        self._silence = silence
        self.counts = PollCounts()
        self._failures = 0
        self.failure: type[SourceError] | None = None
        """Why the last attempt gave no reading: the type, as an error holds what its frames had read."""
        self._began: float | None = None
        self._durations: deque[float] = deque(maxlen=KEPT_DURATIONS)
        self._health = Health(source, target, self._clock.wall(), "not polled yet")

    @property
    def up(self) -> bool:
        """Whether the last attempt gave a reading."""
        return self._health.latest.up

    def health(self) -> SourceHealth:
        """Return the outcome of the last attempt, with the usual and the longest duration of the latest ones."""
        under_way = () if self._began is None else (self._clock.monotonic() - self._began,)
        if not self._durations and not under_way:
            return self._health.latest
        usual, latest = statistics.median(self._durations or under_way), self._health.latest
        waited = sum(under_way)
        if not self._durations and waited >= SILENT_SECONDS:
            latest = replace(latest, error=f"{self._silence} for {waited:.0f} s: it hangs, or something drops packets")
        return replace(latest, usual_seconds=usual, longest_seconds=max(*self._durations, *under_way, 0.0))

    def count(self, reason: str) -> None:
        """Count an error within a reading that succeeds."""
        self._health.count(reason)

    async def attempt(self, read: Callable[[], Awaitable[T]], deliver: Callable[[T], None] | None = None) -> T | None:
        """Read once within the deadline; return the value after `deliver` was called with it, None when that failed.

        Raises nothing but cancellation.
        """
        began = self._began = self._clock.monotonic()
        self.counts.polls += 1
        try:
            if self._share is not None:
                self._share.require()
            async with asyncio.timeout(self.deadline_seconds):
                value = await read()
            if deliver is not None:
                deliver(value)
        except SourceError as error:
            self._down(error, began)
        except TimeoutError:
            self._down(TimedOutError(f"{self._silence} within {self.deadline_seconds:g} s"), began)
        except Exception as error:  # noqa: BLE001
            self._down(bug(error), began, error)
        else:
            was_up, self._failures, self.failure = self.up, 0, None
            self._health.up(self._clock.wall(), self._duration(began))
            if not was_up:
                log.info("source up", source=self._source, target=self._target)
            return value
        finally:
            self._began = None
        return None

    async def run(self, read: Callable[[], Awaitable[T]], deliver: Callable[[T], None] | None = None) -> None:
        """Read at every tick until cancelled; ticks that have passed are skipped and counted.

        The first reading is made within a second, whatever the interval.
        """
        began = self._clock.monotonic()
        first = began + self._ticks.share * min(self._ticks.interval_seconds, FIRST_POLL_SPREAD_SECONDS)
        tick = self._ticks.upcoming(began)
        if self._ticks.due(tick) - first > FIRST_POLL_SPREAD_SECONDS:
            await self._clock.sleep_until(first)
            await self.attempt(read, deliver)
            tick = self._after(tick - 1)
        while True:
            await self._clock.sleep_until(self._ticks.due(tick))
            if self._clock.monotonic() - self._ticks.due(tick) > LATE_SHARE * self._ticks.interval_seconds:
                self.counts.late += 1
            await self.attempt(read, deliver)
            tick = self._after(tick)

    def _after(self, tick: int) -> int:
        costly = self.failure is not None and issubclass(self.failure, COSTLY)
        skipped = backoff_ticks(self._failures, self._ticks.interval_seconds) if costly else 0
        planned = tick + 1 + skipped
        possible = max(planned, self._ticks.upcoming(self._clock.monotonic()))
        self.counts.missed += possible - planned
        return possible

    def _duration(self, began: float, error: SourceError | None = None) -> float:
        seconds = self._clock.monotonic() - began
        # A refused connection does not show how long answers take.
        if error is None or isinstance(error, TimedOutError):
            self._durations.append(seconds)
        return seconds

    def _down(self, error: SourceError, began: float, cause: Exception | None = None) -> None:
        before = self._health.latest
        self._failures, self.failure = self._failures + 1, type(error)
        self._health.down(self._clock.wall(), error, self._duration(began, error))
        if before.up or before.reason == "pending":
            now = self._health.latest
            about = {"source": now.source, "target": now.target, "reason": now.reason, "error": now.error}
            log.warning("source down", **about, exc_info=cause)
