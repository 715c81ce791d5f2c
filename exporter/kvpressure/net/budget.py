"""The CPU that everything beside the polled pages may take: one budget of the process, a share of it for each source.

A source reads what others write, as much as they like. What it may take is measured on the thread's own clock and comes
back with time. One that has used up its own keeps a small part while the others are busy, so a flood in one source
delays no other; and all of them together leave the polls of engines their time.

    all sources      a fifth of a core
    one source       as much, and `KEPT_RATIO` of a core whatever the others take
    one KV feed      `FEED_RATIO` of a core
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, TypeVar

from kvpressure.model.allowance import Allowance
from kvpressure.model.errors import SourceError
from kvpressure.promtext.lines import Steps

T = TypeVar("T")

ALL_RATIO: Final = 0.2
KEPT_RATIO: Final = 0.02
"""For each source, of which there are eight: less than all may take."""
FEED_RATIO: Final = 0.03
BURST_SECONDS: Final = 0.5
"""At a start there is more to read than later: logs from before, the list of pods."""
SLICE_SECONDS: Final = 0.02
"""Of work, after which the event loop gets as long alone."""


class OverBudgetError(SourceError, reason="over_budget"):
    """What was to be read would take more CPU than sources may; it is left out, and counted."""

    def __init__(self) -> None:
        sentence = f"not read now: all sources beside engines' pages may take {ALL_RATIO:.0%} of a core, and did"
        super().__init__(sentence)


class Share:
    """What one source, or one KV feed, may take. Safe to use from several threads."""

    def __init__(self, budget: Budget, allowances: tuple[Allowance, ...], feed: Allowance | None = None) -> None:
        self._budget = budget
        self._allowances = allowances
        self._feed = feed

    def feed(self) -> Share:
        """Return the share of one feed of this source."""
        return Share(self._budget, self._allowances, _seconds(FEED_RATIO, FEED_RATIO))

    def allows(self) -> bool:
        """Whether anything may be read now."""
        with self._budget.lock:
            return self._any_left()

    def require(self) -> None:
        """Raise OverBudgetError where nothing may be read now."""
        if not self.allows():
            raise OverBudgetError

    def allows_work(self) -> bool:
        """Whether what was read may be worked on now; of a feed, less than it may read."""
        with self._budget.lock:
            return (self._feed is None or self._feed.left(time.monotonic()) > 0) and self._any_left()

    def _any_left(self) -> bool:
        now = time.monotonic()
        return any(allowance.left(now) > 0 for allowance in self._allowances)

    def charge(self, seconds: float) -> None:
        """Note seconds of CPU that were used."""
        with self._budget.lock:
            now = time.monotonic()
            for allowance in (*self._allowances, *((self._feed,) if self._feed else ())):
                allowance.take(seconds, now)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Charge what the block takes of this thread's CPU."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.charge(time.thread_time() - began)

    @property
    def alone(self) -> AbstractContextManager[object]:
        """A block that no other source's work runs beside; what in it waits is `waiting`."""
        return self._budget.at_work

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let others work while this block, within `alone`, waits."""
        self._budget.at_work.release()
        try:
            yield
        finally:
            self._budget.at_work.acquire()

    def work(self, steps: Steps[T]) -> T:
        """Return the result of the steps, taken in slices, one source at a time; not for the event loop's thread.

        Raises OverBudgetError, and leaves the rest of the steps, once nothing is left.
        """
        if self.allows_work():
            # Between slices too: what a flood makes of a message is in memory once, not once for each source.
            with self._budget.at_work:
                while self.allows_work():
                    with self.measured():
                        due = time.thread_time() + SLICE_SECONDS
                        try:
                            while time.thread_time() < due:
                                next(steps)
                        except StopIteration as done:
                            result: T = done.value
                            return result
                    time.sleep(SLICE_SECONDS)
        steps.close()
        raise OverBudgetError


class Budget:
    """What all sources of a process may take together."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.at_work = threading.RLock()
        """Held by whoever takes steps: several threads at once would keep the interpreter from the event loop."""
        self._all = _seconds(ALL_RATIO, BURST_SECONDS)
        self._shares: dict[str, Share] = {}

    def share(self, source: str) -> Share:
        """Return the share of a source, the same one for all that it reads."""
        if source not in self._shares:
            self._shares[source] = Share(self, (self._all, _seconds(KEPT_RATIO, KEPT_RATIO)))
        return self._shares[source]


def _seconds(ratio: float, burst_seconds: float) -> Allowance:
    return Allowance(ratio, burst_seconds, time.monotonic())


BUDGET: Final = Budget()
