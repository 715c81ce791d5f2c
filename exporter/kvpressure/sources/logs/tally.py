"""The incidents that a log's lines tell, counted by kind, and how much of one read is looked at.

How lines make incidents: docs/internals/decisions/0070-log-lines.md.
"""

from __future__ import annotations

from typing import Final

from kvpressure.model.environment import LOG_KINDS, ContainerId, LogReport
from kvpressure.printable import brief
from kvpressure.sources.logs.classify import StartUp, locate, plain, remedy
from kvpressure.sources.logs.lines import Line

MAX_LINES: Final = 2000
"""Ten times that would keep the thread, and the interpreter, busy for a second."""
LONG_CHARACTERS: Final = 400
"""Longer lines are mostly requests; no server reports its own death in one."""
MAX_IN_LONG: Final = 64 * 1024
MAX_IN_SHORT: Final = 128 * 1024
"""Characters of long and of short lines, apart, so that long ones hide no short one. Each costs up to 2 us."""


class Allowance:
    """What may still be looked at of one read: every character costs, and a pod writes what it likes."""

    def __init__(self, shares: int = 1) -> None:
        self._lines = shares * MAX_LINES
        self._long = shares * MAX_IN_LONG
        self._short = shares * MAX_IN_SHORT

    def covers(self, characters: int) -> bool:
        """Whether a line of so many characters may be looked at; it then counts."""
        if self._lines <= 0:
            return False
        if characters > LONG_CHARACTERS:
            self._long -= characters
            return self._long >= 0
        self._short -= characters
        return self._short >= 0

    def reported(self) -> None:
        """Count a line that reported something."""
        self._lines -= 1


EXCERPT_CHARACTERS: Final = 200
_BEFORE_MATCH: Final = 60

INCIDENT_SECONDS: Final = {
    "kv_capacity": 60.0,
    "kv_exhausted": 10.0,
    "device_oom": 10.0,
    "host_oom": 10.0,
    "preemption": 0.0,
    "engine_dead": 60.0,
    "other": 10.0,
}
"""Lines of a kind within so many seconds of the first one are one incident.

One traceback names its error several times, and each rank and each request that was running prints its own. A death or
a start takes a minute which every process reports; a preemption line (servers write a few of them) is one by itself.
"""


class Tally:
    """Counts one container's incidents; `since` (unix seconds) is when counting began: older lines are only shown."""

    def __init__(self, container: ContainerId, since: float) -> None:
        self._container = container
        self._since = since
        self._counts = dict.fromkeys(LOG_KINDS, 0)
        self._latest: dict[str, float] = {}
        self._lines: dict[str, str] = {}
        self._began: dict[str, float] = {}
        self._start_up = StartUp()

    def begin(self) -> None:
        """Begin with a restarted container: what it reports are incidents of their own."""
        self._began.clear()
        self._start_up.begin()

    def take(self, line: Line, now: float, *, old: bool) -> bool:
        """Count one line, read at `now`; `old` says of a line without a time whether it was there before `since`.

        Returns whether the line reported anything.
        """
        text = plain(line.text)
        kind_and_count, stamped = locate(text), line.t
        happened = stamped if stamped is not None else None if old else now
        self._start_up.take(text, happened)
        if kind_and_count is None:
            return False
        kind, start = kind_and_count
        starts = f"; start it with {flag}" if kind == "kv_exhausted" and (flag := remedy(text)) else ""
        excerpt = text if start < EXCERPT_CHARACTERS // 2 else text[start - _BEFORE_MATCH :]
        self._lines[kind] = brief(excerpt, EXCERPT_CHARACTERS - len(starts)) + starts
        if happened is not None:
            self._latest[kind] = max(happened, self._latest.get(kind, happened))
        before = stamped < self._since if stamped is not None else old
        t = happened if happened is not None else now
        # Lines of two streams may be a little out of order, and a clock may be set back.
        if kind not in self._began or abs(t - self._began[kind]) >= INCIDENT_SECONDS[kind]:
            self._began[kind] = t
            # Lines from before count as begun incidents: the rest of a traceback that is half old is no new one.
            self._counts[kind] += not before
        return True

    def report(self, t: float) -> LogReport:
        """Return what is known at `t`."""
        return LogReport(
            id=self._container,
            t=t,
            counts=dict(self._counts),
            latest=dict(self._latest),
            lines=dict(self._lines),
            kv_capacity_tokens=self._start_up.capacity_tokens,
            kv_bytes_per_token=self._start_up.bytes_per_token,
        )
