"""Log lines that others can cause as often as they like, told once a minute with how often it happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

QUIET_SECONDS: Final = 60.0


class Tell(Protocol):
    """A method of a logger."""

    def __call__(self, event: str, **what: object) -> object:
        """Write one line."""


class RateLimitedLogger:
    """The first line about an event at once, then one per `QUIET_SECONDS`; `times` counts those since the last one.

    For a handful of fixed events. `monotonic` gives seconds.
    """

    def __init__(self, tell: Tell, monotonic: Callable[[], float]) -> None:
        self._tell = tell
        self._monotonic = monotonic
        self._untold: dict[str, int] = {}
        self._next: dict[str, float] = {}

    def __call__(self, event: str, **what: object) -> None:
        """Count one more; `what` is told of the newest."""
        self._untold[event] = self._untold.get(event, 0) + 1
        now = self._monotonic()
        if now >= self._next.get(event, now):
            self._next[event] = now + QUIET_SECONDS
            self._tell(event, times=self._untold.pop(event), **what)
