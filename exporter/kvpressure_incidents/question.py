"""The question of a look back: time, selector and thresholds, what identifies it, and times as users write them.

Times are `30d`, `2026-01-31`, `2026-01-31T12:00:00Z`, unix seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.prometheus.names import Selection
from kvpressure.prometheus.paging import Span

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LENGTH: Final = re.compile(r"(?:\d+[smhdw])+")
LONGEST_SECONDS: Final = 1_000_000_000_000


@dataclass(frozen=True, slots=True)
class Question:
    """What a look back reads. `step` is None for the scrape interval, but at least 15 s.

    `other` is a second setting of thresholds to compare with.
    """

    span: Span
    selection: Selection
    thresholds: Thresholds
    other: Thresholds | None = None
    step: float | None = None
    shortest_seconds: float = 120.0

    @property
    def settings(self) -> tuple[Thresholds, ...]:
        """The thresholds to judge by, one or two."""
        return (self.thresholds,) if self.other is None else (self.thresholds, self.other)


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as `90m` or `1h30m`. Raises ValueError for anything else.

    >>> seconds_of("1h30m"), seconds_of("30d")
    (5400.0, 2592000.0)
    """
    if not _LENGTH.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a duration such as 30d, 12h or 1h30m")
    total = sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)([smhdw])", text))
    return float(min(total, LONGEST_SECONDS))


def moment_of(text: str, now: float) -> float:
    """Return a time in unix seconds: a duration before `now`, or a date, in UTC unless it has an offset.

    Raises ValueError for anything else.

    >>> moment_of("1h", 7200.0), moment_of("1970-01-02", 0.0), moment_of("86400", 0.0), moment_of("now", 5.0)
    (3600.0, 86400.0, 86400.0, 5.0)
    """
    plain = text.strip()
    if plain == "now":
        return now
    if _LENGTH.fullmatch(plain):
        return now - seconds_of(plain)
    try:
        if re.fullmatch(r"\d+(\.\d+)?", plain):
            return float(plain)
        moment = datetime.fromisoformat(plain)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time such as 30d, 2026-01-31, 2026-01-31T12:00:00Z or unix seconds"
        ) from None
