"""One open log file that grows: read to its end in bounded steps; truncated, skipped ahead, replaced by another."""

from __future__ import annotations

import os
from typing import Final, Protocol

from kvpressure.sources.logs.lines import Line
from kvpressure.sources.logs.safe_open import identity

READ_BYTES: Final = 256 * 1024
BACKLOG_SECONDS: Final = 10
"""A reader that is behind by more than what it may read in so long skips ahead."""
_FINGERPRINT_BYTES: Final = 64


class Sink(Protocol):
    """Who takes what a reader reads."""

    def data(self, data: bytes, *, old: bool) -> None:
        """Bytes in their order; `old` when they were there before the log was first seen."""

    def line(self, line: Line) -> None:
        """One whole line, from a source that is not a file."""

    def cut(self) -> None:
        """Bytes were left out: the next ones begin in the middle of a line."""

    def file(self) -> None:
        """The file ended; the next bytes are the first of the next one."""

    def container(self) -> None:
        """The next bytes are those of another start of the container."""

    def skipped(self, size: int) -> None:
        """So many bytes were not read because there were too many."""


class LiveFile:
    """Reads one descriptor, which it owns, from `offset` (inside a line, unless 0); before `old_until` all is old."""

    def __init__(self, fd: int, offset: int = 0, old_until: int = 0) -> None:
        self._fd = fd
        self.identity = identity(fd)
        self._offset = offset
        self._in_a_line = offset > 0
        self._old_until = old_until
        self._fingerprint = b""

    def read(self, budget: int, sink: Sink) -> int:
        """Read at most about `budget` bytes to the end; gives how many. Raises OSError."""
        if self._in_a_line:
            self._in_a_line = False
            sink.cut()
        size = os.fstat(self._fd).st_size
        if self._truncated(size):
            self._offset, self._old_until, self._fingerprint = 0, 0, b""
            sink.file()
        self._skip_ahead(size, budget, sink)
        done = 0
        while done < budget:
            old = self._offset < self._old_until
            most = min(READ_BYTES, budget - done, self._old_until - self._offset if old else READ_BYTES)
            data = os.pread(self._fd, most, self._offset)
            if not data:
                break
            sink.data(data, old=old)
            self._offset += len(data)
            self._fingerprint = (self._fingerprint + data)[-_FINGERPRINT_BYTES:]
            done += len(data)
        return done

    def at_end(self) -> bool:
        """Whether all that is in the file was read. Raises OSError."""
        return self._offset >= os.fstat(self._fd).st_size

    def follower(self, fd: int) -> LiveFile | None:
        """The file of `fd` if it took this one's place and its writer has moved on to it; else `fd` is closed."""
        if identity(fd) != self.identity and os.fstat(fd).st_size:
            return LiveFile(fd)
        os.close(fd)
        return None

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def _truncated(self, size: int) -> bool:
        """Whether the file was emptied (copytruncate), also when it has grown past the old place since."""
        if size < self._offset:
            return True
        if size == self._offset or not self._fingerprint:
            return False
        before = os.pread(self._fd, len(self._fingerprint), self._offset - len(self._fingerprint))
        return before != self._fingerprint

    def _skip_ahead(self, size: int, budget: int, sink: Sink) -> None:
        behind = size - self._offset
        if behind <= BACKLOG_SECONDS * budget or self._offset < self._old_until:
            return
        self._offset, self._fingerprint = size - budget, b""
        sink.cut()
        sink.skipped(behind - budget)
