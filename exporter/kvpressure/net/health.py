"""PURE: the health of one source of one target as it changes, and what a bug met in one is told as."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from kvpressure.model.record import SourceError
from kvpressure.model.samples import SourceHealth
from kvpressure.printable import brief

LONGEST_SENTENCE: Final = 400


def bug(error: Exception) -> SourceError:
    """Return what a source's health says of an error that nobody expected: the others, and its next poll, go on."""
    return SourceError("internal", f"{type(error).__name__}: {brief(error)}; please report this")


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
