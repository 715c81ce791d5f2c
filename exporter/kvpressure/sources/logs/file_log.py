"""A log file that an operator named, as a service manager or `tee` writes it; rotated by rename or copytruncate."""

from __future__ import annotations

import os
from pathlib import Path

from kvpressure.model.errors import SourceError
from kvpressure.printable import brief
from kvpressure.sources.logs.history import HEAD_BYTES, TAIL_BYTES, Piece, read_piece
from kvpressure.sources.logs.live import LiveFile, Sink
from kvpressure.sources.logs.safe_open import open_regular


class FileLog:
    """Reads one file as it grows; not safe for use from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._live: LiveFile | None = None
        self._appeared = False

    def read(self, budget: int, sink: Sink) -> None:
        """Read on, at most about `budget` bytes. Raises SourceError; what was not read comes with the next call."""
        try:
            if self._live is None:
                budget -= self._begin(sink)
            self._read(budget, sink)
        except OSError as error:
            raise SourceError("io", f"{brief(self._path)}: {brief(error.strerror or error)}") from None

    def close(self) -> None:
        """Close the file."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def _begin(self, sink: Sink) -> int:
        try:
            fd = open_regular(self._path)
        except SourceError as error:
            self._appeared |= error.reason == "missing"  # then all of it will be new when it is there
            raise
        size = os.fstat(fd).st_size
        if self._appeared or size <= HEAD_BYTES + TAIL_BYTES:
            self._live = LiveFile(fd, old_until=0 if self._appeared else size)
            return 0
        self._live = LiveFile(fd, size - TAIL_BYTES, old_until=size)
        return read_piece(open_regular(self._path), Piece(self._path.name, head=HEAD_BYTES), sink)

    def _read(self, budget: int, sink: Sink) -> None:
        while self._live is not None and budget > 0:
            budget -= self._live.read(budget, sink)
            following = self._following() if self._live.at_end() else None
            if following is None:
                return
            sink.file()
            self.close()
            self._live = following

    def _following(self) -> LiveFile | None:
        try:
            fd = open_regular(self._path)
        except SourceError as error:
            if error.reason == "missing":  # renamed, and not yet made anew
                return None
            raise
        return self._live.follower(fd) if self._live is not None else None
