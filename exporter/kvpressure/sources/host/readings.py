"""PURE: the kernel's cumulative counters as text, and what two readings of them say of the time between."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_SOME: Final = re.compile(r"^some\b.*\btotal=(\d{1,20})\b", re.MULTILINE)
_PERIODS: Final = re.compile(r"^nr_periods (\d{1,20})$", re.MULTILINE)
_THROTTLED: Final = re.compile(r"^nr_throttled (\d{1,20})$", re.MULTILINE)


def stalled_microseconds(text: str) -> int | None:
    """Time in which some task waited for a CPU since boot, of `/proc/pressure/cpu`; None where the text has none.

    `total=` of the line `some` (Linux, Documentation/accounting/psi.rst).
    """
    match = _SOME.search(text)
    return int(match[1]) if match else None


def pressure_ratio(before: int, after: int, seconds: float) -> float | None:
    """Share of `seconds` in which some task waited: (total after - total before) / time between.

    The difference of the total covers all of the time between two readings; `avg10` would alias. None when the total
    went back (another machine's file) or no time passed.
    """
    if seconds <= 0 or after < before:
        return None
    return min(1.0, (after - before) / 1e6 / seconds)


@dataclass(frozen=True, slots=True)
class Periods:
    """Scheduling periods in which a cgroup wanted to run, and those in which it hit its CPU limit."""

    periods: int
    throttled: int


def periods(text: str) -> Periods | None:
    """`nr_periods` and `nr_throttled` of a `cpu.stat`, the same in both versions of cgroups; None without them.

    Linux, Documentation/admin-guide/cgroup-v2.rst and Documentation/scheduler/sched-bwc.rst.
    """
    total, throttled = _PERIODS.search(text), _THROTTLED.search(text)
    return Periods(int(total[1]), int(throttled[1])) if total and throttled else None


def throttled_ratio(before: Periods, after: Periods) -> float | None:
    """Share of the periods between two readings in which the container ran into its limit.

    None when there were no periods: it has no limit, or did not run, which is not the same as never throttled. None too
    when the counters went back (a new container under the same name).
    """
    passed, throttled = after.periods - before.periods, after.throttled - before.throttled
    return min(1.0, throttled / passed) if passed > 0 and throttled >= 0 else None
