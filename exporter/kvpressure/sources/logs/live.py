"""Log files: one that grows, read to its end in bounded steps, and what of a log that was there before is read.

Of the latter its start, which says the KV cache's size, and its last lines, which report failures.
"""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from kvpressure.sources.logs.safe_open import identity

if TYPE_CHECKING:
    from kvpressure.sources.logs.follower import Follower

READ_BYTES: Final = 256 * 1024
BACKLOG_SECONDS: Final = 10
"""A reader that is behind by more than what it may read in so long skips ahead."""
_FINGERPRINT_BYTES: Final = 64


class LiveFile:
    """Reads one descriptor, which it owns, from `offset` (inside a line, unless 0); before `old_until` all is old."""

    def __init__(self, fd: int, offset: int = 0, old_until: int = 0) -> None:
        self._fd = fd
        self.identity = identity(fd)
        self._offset = offset
        self._in_a_line = offset > 0
        self._old_until = old_until
        self._fingerprint = b""

    def read(self, budget: int, sink: Follower) -> int:
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
        """Return the file of `fd` if it took this one's place and its writer has moved on to it; else close `fd`."""
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

    def _skip_ahead(self, size: int, budget: int, sink: Follower) -> None:
        behind = size - self._offset
        if behind <= BACKLOG_SECONDS * budget or self._offset < self._old_until:
            return
        self._offset, self._fingerprint = size - budget, b""
        sink.cut()
        sink.skipped()


HEAD_BYTES: Final = 512 * 1024
"""A server has said how large its cache is long before this much."""
TAIL_BYTES: Final = 256 * 1024
MAX_UNPACKED_BYTES: Final = 16 * 1024 * 1024
"""Of a compressed file no more is unpacked; the kubelet rotates at 10 MiB by default."""

_NAME: Final = re.compile(r"(\d{1,9})\.log(?:\.(\d{8}-\d{6}))?(\.gz)?")


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """One file of a container: which start of it, when rotated ("~" for the one being written), and its name."""

    number: int
    rotated: str
    name: str

    @property
    def live(self) -> bool:
        """Whether it is the one being written."""
        return self.rotated == "~"


def log_files(names: Sequence[str]) -> list[LogFile]:
    """Return the log files among `names`, oldest first; of a file and its compressed copy only the file."""
    files: dict[tuple[int, str], LogFile] = {}
    for name in sorted(names, reverse=True):  # "x.gz" before "x", which then takes its place
        match = _NAME.fullmatch(name)
        if match is None or (match[3] and not match[2]):
            continue
        file = LogFile(int(match[1]), match[2] or "~", name)
        files[file.number, file.rotated] = file
    return sorted(files.values())


def read_once(fd: int, sink: Follower, *, head: int = 0, tail: int = 0, packed: bool = False) -> None:
    """Hand the start and the end of a file to `sink`, and close `fd`; a damaged archive gives what can be unpacked.

    Raises OSError.
    """
    with os.fdopen(fd, "rb") as file:
        content: BinaryIO = io.BytesIO(_unpacked(file)) if packed else file
        size = content.seek(0, os.SEEK_END)
        whole = size <= head + tail
        for start, length in [(0, size)] if whole else [(0, head), (size - tail, tail)]:
            if start:
                sink.cut()
            content.seek(start)
            if data := content.read(length):
                sink.data(data, old=True)
    sink.file()


def _unpacked(file: BinaryIO) -> bytes:
    unpacked = bytearray()
    stream = zlib.decompressobj(wbits=31)
    while len(unpacked) < MAX_UNPACKED_BYTES and (packed := file.read(64 * 1024)):
        try:
            unpacked += stream.decompress(packed, MAX_UNPACKED_BYTES - len(unpacked))
        except zlib.error:
            break
    return bytes(unpacked)
