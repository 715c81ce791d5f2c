"""Logs in files: one that an operator named, and that of a container.

The first is written by a service manager or `tee`, and rotated by rename or copytruncate. The other is
`<namespace>_<pod>_<uid>/<container>/<restarts>.log`, as the kubelet keeps it.

The kubelet renames a file that is full to `0.log.20240101-000000`, compresses that at the next rotation, and begins
`1.log` when the container is started again. A file is read to its end before the next one is begun, so that the last
words of a container that died are not lost.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvpressure.model.environment import ContainerState
from kvpressure.model.errors import MissingError, SourceError, UnreadableError
from kvpressure.printable import brief
from kvpressure.sources.logs.live import HEAD_BYTES, TAIL_BYTES, LiveFile, LogFile, Piece, log_files, plan, read_piece
from kvpressure.sources.logs.safe_open import Tree, open_named

if TYPE_CHECKING:
    from kvpressure.sources.logs.follower import Follower


class _OpenFile:
    _live: LiveFile | None = None

    def close(self) -> None:
        """Close the file being read."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def _following(self, open_again: Callable[[], int]) -> LiveFile | None:
        """Return the file that took the place of the one being read, None while there is none."""
        try:
            fd = open_again()
        except MissingError:  # renamed, and not yet made anew
            return None
        return LiveFile(fd) if self._live is None else self._live.follower(fd)


class FileLog(_OpenFile):
    """Reads one file as it grows; not safe for use from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._appeared = False

    def read(self, budget: int, sink: Follower) -> None:
        """Read on, at most about `budget` bytes. Raises SourceError; what was not read comes with the next call."""
        try:
            if self._live is None:
                budget -= self._begin(sink)
            self._read(budget, sink)
        except OSError as error:
            raise UnreadableError(f"{brief(self._path)}: {brief(error.strerror or error)}") from None

    def _begin(self, sink: Follower) -> int:
        try:
            fd = open_named(self._path)
        except MissingError:
            self._appeared = True  # then all of it will be new when it is there
            raise
        size = os.fstat(fd).st_size
        if self._appeared or size <= HEAD_BYTES + TAIL_BYTES:
            self._live = LiveFile(fd, old_until=0 if self._appeared else size)
            return 0
        self._live = LiveFile(fd, size - TAIL_BYTES, old_until=size)
        return read_piece(open_named(self._path), Piece(self._path.name, head=HEAD_BYTES), sink)

    def _read(self, budget: int, sink: Follower) -> None:
        while self._live is not None and budget > 0:
            budget -= self._live.read(budget, sink)
            following = self._following(lambda: open_named(self._path)) if self._live.at_end() else None
            if following is None:
                return
            sink.file()
            self.close()
            self._live = following


_MAX_SWITCHES: Final = 8


def directory_of(state: ContainerState) -> tuple[str, str]:
    """Return where below the log directory the kubelet keeps the logs of a container."""
    return f"{state.id.namespace}_{state.id.pod}_{state.pod_uid}", state.id.container


class PodLog(_OpenFile):
    """Reads one container's files as they come; not safe for use from several threads."""

    def __init__(self, tree: Tree, directory: Sequence[str]) -> None:
        self._tree = tree
        self._directory = tuple(directory)
        self._history: deque[Piece] | None = None
        self._number = -1

    def read(self, budget: int, sink: Follower) -> None:
        """Read on, at most about `budget` bytes. Raises SourceError; what was not read comes with the next call."""
        files = log_files(self._tree.names(self._directory))
        if not files and self._live is None:
            raise MissingError(f"{brief('/'.join(self._directory))} holds no log yet")
        if self._history is None and files:
            self._begin(files)
        budget -= self._read_history(budget, sink)
        try:
            self._read_live(files, budget, sink)
        except OSError as error:
            raise UnreadableError(f"{brief('/'.join(self._directory))}: {brief(error.strerror or error)}") from None

    def _open(self, name: str) -> int:
        return self._tree.open_file((*self._directory, name))

    def _begin(self, files: Sequence[LogFile]) -> None:
        newest, pieces = files[-1], plan(files)
        self._number = newest.number
        if newest.live:
            fd = self._open(newest.name)
            size = os.fstat(fd).st_size
            first = not any(piece.starts_container for piece in pieces)
            # One start's only file: its beginning has the size of the cache, so it is read from there.
            head = HEAD_BYTES if first else 0
            offset = 0 if size <= head + TAIL_BYTES else size - TAIL_BYTES
            pieces += [Piece(newest.name, head=head if offset else 0, starts_container=first)] if first else []
            self._live = LiveFile(fd, offset, old_until=size)
        self._history = deque(pieces)

    def _read_history(self, budget: int, sink: Follower) -> int:
        done = 0
        while self._history and done < budget:
            piece = self._history.popleft()
            # What was rotated away or became unreadable meanwhile is left out, and the rest is read.
            with suppress(SourceError, OSError):
                if piece.head or piece.tail:
                    done += read_piece(self._open(piece.name), piece, sink)
                elif piece.starts_container:
                    sink.container()
        return done

    def _read_live(self, files: Sequence[LogFile], budget: int, sink: Follower) -> None:
        if self._history:
            return
        for _ in range(_MAX_SWITCHES):
            if budget <= 0:
                return
            if self._live is not None:
                budget -= self._live.read(budget, sink)
                if not self._live.at_end():
                    return
            if not self._next({file.number: file.name for file in files if file.live}, sink):
                return

    def _next(self, live: Mapping[int, str], sink: Follower) -> bool:
        """Go to the file that follows the one read to its end; false when there is none."""
        name = live.get(self._number)  # of the same start, anew
        following = None if name is None else self._following(lambda: self._open(name))
        number = min((n for n in live if n > self._number), default=None)
        if following is None and number is None:
            return False
        sink.file()
        if following is None and number is not None:
            following, self._number = LiveFile(self._open(live[number])), number
            sink.container()
        self.close()
        self._live = following
        return True
