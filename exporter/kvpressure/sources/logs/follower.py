"""One log that is followed: its reader, the lines it makes, and how reading it goes."""

from __future__ import annotations

import time
from typing import Final, Protocol

from kvpressure.model.environment import ContainerId, LogReport
from kvpressure.model.errors import SourceError
from kvpressure.model.samples import SourceHealth
from kvpressure.net.budget import OverBudgetError, Share
from kvpressure.net.guard import Health
from kvpressure.net.threads import bug
from kvpressure.sources.logs.classify import is_telling, telling_lines
from kvpressure.sources.logs.lines import Assembler, Line
from kvpressure.sources.logs.tally import Allowance, Tally

NAME = "logs"
_KEPT_OF_COST: Final = 0.9


class Reader(Protocol):
    """Where a log is."""

    def read(self, budget: int, sink: Follower) -> None:
        """Read on, at most about `budget` bytes, and hand them on. Raises SourceError."""

    def close(self) -> None:
        """Give descriptors and processes back."""


class Follower:
    """Follows one container's log; `since` is when counting begins, in unix seconds."""

    def __init__(self, container: ContainerId, reader: Reader, since: float) -> None:
        target = "/".join(part for part in (container.namespace, container.pod, container.container) if part)
        self.id = container
        self._reader = reader
        self._assembler = Assembler(telling_lines)
        self._tally = Tally(container, since)
        self._health = Health(NAME, target, since)
        self._now = since
        self._allowance = Allowance()
        self.cost = 0.0
        """Seconds of CPU that it took lately."""

    @property
    def health(self) -> SourceHealth:
        """How reading it goes."""
        return self._health.latest

    def read(self, budget: int, now: float, share: Share | None = None) -> None:
        """Read on, at most about `budget` bytes; `now` in unix seconds. Never raises: a bug is this log's failure.

        Nothing is read while the `share` of all logs is used up; what was written meanwhile is read later.
        """
        self._now = now
        self._allowance = Allowance()
        began = time.thread_time()
        self.cost *= _KEPT_OF_COST
        try:
            if share is not None:
                share.require()
            self._reader.read(budget, self)
        except OverBudgetError as error:
            self._health.count(error.reason)
            return
        except SourceError as error:
            self._health.down(now, error)
        except Exception as error:  # noqa: BLE001 the other logs must go on
            self._health.down(now, bug(error))
        else:
            self._health.up(now)
        seconds = time.thread_time() - began
        self.cost += seconds
        if share is not None:
            share.charge(seconds)

    def report(self) -> LogReport | None:
        """Return what the log said, None while it cannot be read: silence is only known of a log that is read."""
        last = self._health.latest.last_success
        return None if last is None else self._tally.report(last)

    def close(self) -> None:
        """Stop following."""
        self._reader.close()

    # What a reader hands on.

    def data(self, data: bytes, *, old: bool) -> None:
        """Take a file's bytes in their order; `old` when they were there before the log was first read."""
        for line in self._assembler.feed(data):
            self._take(line, old=old)

    def line(self, line: Line) -> None:
        """Take a line of the journal, which has a time."""
        self._take(line, old=False)

    def cut(self) -> None:
        """Note that bytes were left out: the next ones begin in the middle of a line."""
        self._assembler.cut()

    def file(self) -> None:
        """Note that the file ended; the next bytes are the first of the next one."""
        for line in self._assembler.end():
            self._take(line, old=False)

    def container(self) -> None:
        """Note that the next bytes are those of another start of the container."""
        self._assembler.clear()
        self._tally.begin()

    def skipped(self) -> None:
        """Note a skipped backlog; the last start-up line may be out of date, but nothing is counted twice."""
        self._health.count("backlog")

    def _take(self, line: Line, *, old: bool) -> None:
        """Count a line, unless this read has looked at as much as it may; a line that reports nothing is free."""
        looked_at = is_telling(line.text) and self._allowance.covers(len(line.text))
        if looked_at and self._tally.take(line, self._now, old=old):
            self._allowance.reported()
