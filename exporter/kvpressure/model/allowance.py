"""PURE: so much of something, which comes back with time."""

from __future__ import annotations

from typing import Final


class Allowance:
    """`burst` at first; what is taken comes back, `per_second`. More may be taken than is left, and is owed then."""

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._left, self._at = burst, now

    def left(self, now: float) -> float:
        """Return what may be taken at `now` (seconds, of any clock)."""
        self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._per_second)
        self._at = now
        return self._left

    def take(self, amount: float, now: float) -> None:
        """Take so much, whatever is left."""
        self._left = self.left(now) - amount


NEW_AN_HOUR: Final = 256
"""Label sets of one target or GPU source: as many engines as a page may have; four repartitions of eight GPUs (MIG)."""

_HOUR_SECONDS: Final = 3600.0


class NewLabelSets:
    """How many label sets that were not exported before may be exported, for each owner (a target, a pod, a source).

    A series costs the Prometheus that stores it, also when it is gone the next minute. So a page whose labels change
    with each poll gets a number of them an hour; owners of which more is held back are `held_back`.
    """

    def __init__(self) -> None:
        self._left: dict[str, Allowance] = {}
        self.held_back: set[str] = set()

    def allows(self, owner: str, now: float) -> bool:
        """Whether one more may be exported; it then counts."""
        left = self._left.setdefault(owner, Allowance(NEW_AN_HOUR / _HOUR_SECONDS, NEW_AN_HOUR, now))
        if left.left(now) < 1:
            self.held_back.add(owner)
            return False
        left.take(1, now)
        return True

    def expire(self, now: float) -> None:
        """Forget the owners that may export as many as ever again."""
        self._left = {owner: left for owner, left in self._left.items() if left.left(now) < NEW_AN_HOUR}
        self.held_back &= self._left.keys()

    def problems(self) -> tuple[str, ...]:
        """Return a sentence for each owner of which something is held back."""
        return tuple(
            f"{owner}: more than {NEW_AN_HOUR} new label sets within an hour; further ones are held back, to spare the"
            " Prometheus that would store them"
            for owner in sorted(self.held_back)
        )
