"""Windows that hold enough scrapes: a range with one sample in it proves nothing, and `rate` of one is nothing.

Templates are written for the shortest interval; a longer one stretches what is too short for it.
"""

from __future__ import annotations

import re
from typing import Final

SCRAPES_IN_A_RANGE: Final = 4
"""Two for a rate, one that may be missed, and one because a range seldom begins with a scrape."""

SCRAPES_TO_WAIT: Final = 2
"""`for` asks for two scrapes, or one bad sample would have lasted."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(r"(?:[0-9]+[smhd])+")
_RANGE: Final = re.compile(rf"\[({_DURATION.pattern})\]")


def seconds(duration: str) -> int:
    """Return the seconds of a duration as Prometheus writes it, such as 1m30s. Raises ValueError."""
    if not _DURATION.fullmatch(duration):
        raise ValueError(f"{duration!r} is no duration such as 30s or 1m30s")
    return sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"([0-9]+)([smhd])", duration))


def duration(total_seconds: int) -> str:
    """Return seconds as Prometheus writes them: 90 is 1m30s."""
    parts = []
    for unit, size in reversed(_UNITS.items()):
        count, total_seconds = divmod(total_seconds, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def ranges(expr: str, scrape_seconds: int) -> str:
    """Return an expression, or a template with queries in it, whose ranges hold four scrapes each."""
    return _RANGE.sub(lambda found: f"[{_at_least(found[1], SCRAPES_IN_A_RANGE * scrape_seconds)}]", expr)


def waiting(pending: str, scrape_seconds: int) -> str:
    """Return a `for` of at least two scrapes; 0s stays as it is."""
    return pending if not seconds(pending) else _at_least(pending, SCRAPES_TO_WAIT * scrape_seconds)


def keeping(kept: str, scrape_seconds: int) -> str:
    """Return a `keep_firing_for` that bridges missed scrapes."""
    return _at_least(kept, SCRAPES_IN_A_RANGE * scrape_seconds)


def _at_least(given: str, least_seconds: int) -> str:
    return given if seconds(given) >= least_seconds else duration(least_seconds)
