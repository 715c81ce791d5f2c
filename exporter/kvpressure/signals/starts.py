"""How often a server was seen to start: its page tells when the process that answers did."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

SAME_START_SECONDS = 0.5
MAX_STARTS = 16
LATELY_SECONDS = 600.0


class Starts:
    """The newest restarts of each target's server."""

    def __init__(self) -> None:
        self._started: dict[str, float] = {}
        self._seen: dict[str, deque[float]] = {}

    def restarted(self, target: str, started: float | None) -> bool:
        """Take in when the server that answered was started; whether that is another time than it was before."""
        if started is None:
            return False
        before = self._started.get(target)
        self._started[target] = started
        again = before is not None and abs(started - before) > SAME_START_SECONDS
        seen = self._seen.setdefault(target, deque(maxlen=MAX_STARTS))
        if again:
            seen.append(started)
        return again

    def lately(self, target: str, now: float) -> int | None:
        """Restarts seen in the last ten minutes; None for a server whose page does not tell when it started."""
        seen = self._seen.get(target)
        return None if seen is None else sum(now - t <= LATELY_SECONDS for t in seen)

    def forget(self, targets: Iterable[str]) -> None:
        """Drop everything of targets that are gone."""
        for target in targets:
            self._started.pop(target, None)
            self._seen.pop(target, None)
