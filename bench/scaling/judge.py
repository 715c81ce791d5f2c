"""The objective: which minutes were bad for those who asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bench.scaling.shapes import FIRST_TOKEN_SECONDS, FIRST_TOKEN_TOKENS_PER_SECOND, PER_TOKEN_SECONDS, Request

OUTSIDE_MAX_RATIO: Final = 0.05


@dataclass(frozen=True, slots=True)
class Minute:
    """Requests that ended in it or still waited for their first token at its end, and those of them that were late."""

    counted: int
    late: int
    slow: int

    @property
    def violates(self) -> bool:
        """More than one in twenty waited too long for the first token, or for the ones after it."""
        return self.late + self.slow > OUTSIDE_MAX_RATIO * self.counted


def minute(requests: Iterable[Request], now: float) -> Minute:
    """Judge those that are there at its end, `now`, or ended since the last."""
    counted = late = slow = 0
    for one in requests:
        if one.ended is None and one.first is not None:
            continue
        counted += 1
        within = FIRST_TOKEN_SECONDS + one.prompt / FIRST_TOKEN_TOKENS_PER_SECOND
        if (now if one.first is None else one.first) - one.arrived > within:
            late += 1
        elif one.ended is not None and one.first is not None and one.output > 1:
            slow += (one.ended - one.first) / (one.output - 1) > PER_TOKEN_SECONDS
    return Minute(counted, late, slow)
