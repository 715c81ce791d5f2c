"""The guard that every source runs in: schedule, deadline, health, back-off and one log line per change of state.

A source is a coroutine function that returns one reading or raises `SourceError`. Whatever it does, its guard
turns it into a value or a `SourceHealth`; nothing a source meets in the world ends the task that polls it.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Generic, TypeVar

import structlog

from kvpressure.model.record import SourceError, record
from kvpressure.model.samples import SourceHealth
from kvpressure.net.schedule import Backoff, Clock, SystemClock, Ticks, default_deadline_seconds, spread
from kvpressure.net.threads import bug
from kvpressure.printable import brief

T = TypeVar("T")

LATE_SHARE: Final = 0.5
FIRST_POLL_SPREAD_SECONDS: Final = 1.0
KEPT_DURATIONS: Final = 60
"""A minute of polls at 1 Hz: how slow a source is now, and not what it was an hour ago."""

log = structlog.get_logger("kvpressure.sources")

LONGEST_SENTENCE: Final = 400


class Health:
    """Keeps the outcome of the last reading in `latest`; `reason` is "pending" before the first. Unix seconds."""

    def __init__(self, source: str, target: str, t: float, error: str = "not read yet") -> None:
        self._errors: Counter[str] = Counter()
        self.latest = SourceHealth(source, target, False, t, error=error, reason="pending")

    def count(self, reason: str) -> None:
        """Count something that went wrong in a reading that succeeded."""
        self._errors[reason] += 1

    def up(self, t: float, duration_seconds: float = math.nan) -> None:
        """Note that a reading succeeded."""
        was = self.latest
        self.latest = SourceHealth(was.source, was.target, True, t, duration_seconds, t, errors=dict(self._errors))

    def down(self, t: float, error: SourceError, duration_seconds: float = math.nan) -> None:
        """Note that a reading failed."""
        was, sentence = self.latest, brief(error.sentence, LONGEST_SENTENCE)
        self._errors[error.reason] += 1
        failed = (False, t, duration_seconds, was.last_success, sentence, error.reason, dict(self._errors))
        self.latest = SourceHealth(was.source, was.target, *failed)


@record
class PollCounts:
    """How punctual a source was.

    `polls` counts attempts, `late` those that began more than half an interval after their tick, `missed` the ticks
    that were lost because the attempt before was still running or the loop was busy (ticks of back-off are not).
    """

    polls: int = 0
    late: int = 0
    missed: int = 0


class Guard(Generic[T]):
    """Runs one source's readings and keeps its health.

    `deadline_seconds` is measured on the event loop's clock whatever `clock` is, so a virtual clock still has
    working deadlines. `silence` begins the sentence of a reading that ran into it.
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
    ) -> None:
        self._source = source
        self._target = target
        self._clock: Clock = clock or SystemClock()
        self._ticks = Ticks(interval_seconds, spread(target or source))
        self._backoff = Backoff()
        self.deadline_seconds = deadline_seconds or default_deadline_seconds(interval_seconds)
        self._silence = silence
        self.counts = PollCounts()
        self._failures = 0
        self._began: float | None = None
        self._durations: deque[float] = deque(maxlen=KEPT_DURATIONS)
        self._health = Health(source, target, self._clock.wall(), "not polled yet")

    @property
    def up(self) -> bool:
        """Whether the last attempt gave a reading."""
        return self._health.latest.up

    def health(self) -> SourceHealth:
        """Return the outcome of the last attempt; `reason` is "pending" before the first."""
        under_way = () if self._began is None else (self._clock.monotonic() - self._began,)
        if not self._durations and not under_way:
            return self._health.latest
        usual = statistics.median(self._durations or under_way)
        return replace(self._health.latest, usual_seconds=usual, longest_seconds=max(*self._durations, *under_way, 0.0))

    async def attempt(self, read: Callable[[], Awaitable[T]], deliver: Callable[[T], None] | None = None) -> T | None:
        """Read once under the deadline: return the value, passed to `deliver` first, or None when it failed.

        Raises nothing but cancellation.
        """
        began = self._began = self._clock.monotonic()
        self.counts = PollCounts(self.counts.polls + 1, self.counts.late, self.counts.missed)
        try:
            async with asyncio.timeout(self.deadline_seconds):
                value = await read()
            if deliver is not None:
                deliver(value)
        except SourceError as error:
            self._down(error, began)
        except TimeoutError:
            self._down(SourceError("timeout", f"{self._silence} within {self.deadline_seconds:g} s"), began)
        except Exception as error:  # noqa: BLE001
            self._down(bug(error), began, error)
        else:
            was_up, self._failures = self.up, 0
            self._health.up(self._clock.wall(), self._took(began))
            if not was_up:
                log.info("source up", source=self._source, target=self._target)
            return value
        finally:
            self._began = None
        return None

    async def run(self, read: Callable[[], Awaitable[T]], deliver: Callable[[T], None] | None = None) -> None:
        """Attempt at every tick until cancelled; ticks that have passed are skipped and counted, never bunched.

        The first attempt comes within a second, so that a long interval does not mean a long blank page.
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
                self.counts = PollCounts(self.counts.polls, self.counts.late + 1, self.counts.missed)
            await self.attempt(read, deliver)
            tick = self._after(tick)

    def _after(self, tick: int) -> int:
        skipped = self._backoff.skipped_ticks(self._health.latest.reason, self._failures, self._ticks.interval_seconds)
        wanted = tick + 1 + skipped
        possible = max(wanted, self._ticks.upcoming(self._clock.monotonic()))
        if possible > wanted:
            self.counts = PollCounts(self.counts.polls, self.counts.late, self.counts.missed + possible - wanted)
        return possible

    def _took(self, began: float, reason: str = "") -> float:
        took = self._clock.monotonic() - began
        if reason in ("", "timeout"):  # a refusal at once says nothing of how long answers take
            self._durations.append(took)
        return took

    def _down(self, error: SourceError, began: float, cause: Exception | None = None) -> None:
        before = self._health.latest
        self._failures += 1
        self._health.down(self._clock.wall(), error, self._took(began, error.reason))
        if before.up or before.reason == "pending":
            now = self._health.latest
            about = {"source": now.source, "target": now.target, "reason": now.reason, "error": now.error}
            log.warning("source down", **about, exc_info=cause)
