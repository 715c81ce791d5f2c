"""A cap on the batch that nobody declared, remembered once an engine was seen held by it."""

from __future__ import annotations

from kvpressure.model.limits import LEARNED, Limit


class LearnedCap:
    """What a verdict learned of `max_num_seqs`. It shows only while the batch is full, and holds afterwards too."""

    def __init__(self) -> None:
        self._value: float | None = None

    def learn(self, limit: Limit | None) -> None:
        """Take in the cap that is in force as far as a verdict tells; one that was declared needs no memory."""
        if limit is not None and limit.source == LEARNED:
            self._value = limit.value

    def forget(self) -> None:
        """Another process answers, which may have been started with another cap."""
        self._value = None

    def at(self, highest_running: float | None) -> float | None:
        """Return the cap in sequences; None where none was learned, or a larger batch was seen since: it was no cap."""
        if self._value is not None and (highest_running or 0.0) > self._value:
            self._value = None
        return self._value
