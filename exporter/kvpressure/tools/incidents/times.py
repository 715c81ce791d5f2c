"""Times as people give them: `30d`, `2026-01-31`, `2026-01-31T12:00:00Z`, unix seconds. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MAX_SIMULATED_SECONDS: Final = 1_000_000_000_000
_LENGTH: Final = re.compile(r"(?:\d+[smhdw])+")


def seconds_of(text: str) -> float:
    """Return a length such as `90m` or `1h30m`. ValueError for anything else.

    >>> seconds_of("1h30m"), seconds_of("30d")
    (5400.0, 2592000.0)
    """
    if not _LENGTH.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is no length of time such as 30d, 12h or 1h30m")
    total = sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)([smhdw])", text))
    return float(min(total, MAX_SIMULATED_SECONDS))


def moment_of(text: str, now: float) -> float:
    """Return a moment in unix seconds: so long before `now`, or a date, which is UTC unless it says otherwise.

    ValueError for anything else.

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
        found = datetime.fromisoformat(plain)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no time such as 30d, 2026-01-31, 2026-01-31T12:00:00Z or unix seconds") from None
