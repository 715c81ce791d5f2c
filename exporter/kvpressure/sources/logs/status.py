"""PURE: keeps what is known of the health of one source."""

from __future__ import annotations

import math
from collections import Counter

from kvpressure.model.errors import SourceError
from kvpressure.model.samples import SourceHealth
from kvpressure.net.guard import LONGEST_SENTENCE
from kvpressure.printable import brief


class Status:
    """The health of one source of one target as it changes; times are unix seconds."""

    def __init__(self, source: str, target: str, t: float) -> None:
        self._errors: Counter[str] = Counter()
        self._health = SourceHealth(source, target, False, t, error="not read yet", reason="pending")

    @property
    def health(self) -> SourceHealth:
        """The outcome of the last reading; `reason` is "pending" before the first."""
        return self._health

    def count(self, reason: str) -> None:
        """Count something that went wrong in a reading that succeeded."""
        self._errors[reason] += 1

    def up(self, t: float, duration_seconds: float = math.nan) -> None:
        """A reading succeeded."""
        was = self._health
        self._health = SourceHealth(was.source, was.target, True, t, duration_seconds, t, errors=dict(self._errors))

    def down(self, t: float, error: SourceError, duration_seconds: float = math.nan) -> None:
        """A reading failed."""
        was = self._health
        self._errors[error.reason] += 1
        self._health = SourceHealth(
            was.source,
            was.target,
            False,
            t,
            duration_seconds,
            was.last_success,
            brief(error.sentence, LONGEST_SENTENCE),
            error.reason,
            dict(self._errors),
        )
