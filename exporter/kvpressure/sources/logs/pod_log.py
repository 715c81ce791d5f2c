"""Logs in files: one that an operator named, and that of a container.

The first is written by a service manager or `tee`, and rotated by rename or copytruncate. The other is
`<namespace>_<pod>_<uid>/<container>/<restarts>.log`, as the kubelet keeps it.

The kubelet renames a file that is full to `0.log.20240101-000000`, compresses that at the next rotation, and begins
`1.log` when the container is started again. A file is read to its end before the next one is begun, so that the last
words of a container that died are not lost.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvpressure.model.environment import ContainerState
from kvpressure.model.errors import MissingError, SourceError, UnreadableError
from kvpressure.printable import brief
from kvpressure.sources.logs.live import HEAD_BYTES, TAIL_BYTES, LiveFile, LogFile, log_files, read_once
from kvpressure.sources.logs.safe_open import Tree, open_named

if TYPE_CHECKING:
    from kvpressure.sources.logs.follower import Follower


_MAX_SWITCHES: Final = 8


class _Log(ABC):
    """Reads one file as it grows, then the one that follows it; not safe for use from several threads."""

    _live: LiveFile | None = None

    @abstractmethod
    def _follow(self) -> tuple[LiveFile, bool] | None:
        """Return the file to go on with, and whether it is of another start of the container. Raises SourceError."""

    def close(self) -> None:
        """Close the file being read."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def _read_on(self, budget: int, sink: Follower) -> None:
        for _ in range(_MAX_SWITCHES):
            if budget <= 0:
                return
            if self._live is not None:
                budget -= self._live.read(budget, sink)
                if not self._live.at_end():
                    return
            if (following := self._follow()) is None:
                return
            sink.file()
            if following[1]:
                sink.container()
            self.close()
            self._live = following[0]

    def _replacement(self, open_again: Callable[[], int]) -> LiveFile | None:
        """Return the file that took the place of the one being read, None while there is none."""
        try:
            fd = open_again()
        except MissingError:  # renamed, and not yet made anew
            return None
        return LiveFile(fd) if self._live is None else self._live.follower(fd)


class FileLog(_Log):
    """Reads a file that an operator named."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._appeared = False

    def read(self, budget: int, sink: Follower) -> None:
        """Read on, at most about `budget` bytes. Raises SourceError; what was not read comes with the next call."""
        try:
            if self._live is None:
                self._begin(sink)
            self._read_on(budget, sink)
        except OSError as error:
            raise UnreadableError(f"{brief(self._path)}: {brief(error.strerror or error)}") from None

    def _begin(self, sink: Follower) -> None:
        try:
            fd = open_named(self._path)
        except MissingError:
            self._appeared = True  # then all of it will be new when it is there
            raise
        size = os.fstat(fd).st_size
        if self._appeared or size <= HEAD_BYTES + TAIL_BYTES:
            self._live = LiveFile(fd, old_until=0 if self._appeared else size)
            return
        self._live = LiveFile(fd, size - TAIL_BYTES, old_until=size)
        read_once(open_named(self._path), sink, head=HEAD_BYTES)

    def _follow(self) -> tuple[LiveFile, bool] | None:
        following = self._replacement(lambda: open_named(self._path))
        return None if following is None else (following, False)


def directory_of(state: ContainerState) -> tuple[str, str]:
    """Return where below the log directory the kubelet keeps the logs of a container."""
    return f"{state.id.namespace}_{state.id.pod}_{state.pod_uid}", state.id.container


class PodLog(_Log):
    """Reads one container's files."""

    def __init__(self, tree: Tree, directory: Sequence[str]) -> None:
        self._tree = tree
        self._directory = tuple(directory)
        self._files: Sequence[LogFile] = ()
        self._number = -1

    def read(self, budget: int, sink: Follower) -> None:
        """Read on, at most about `budget` bytes. Raises SourceError; what was not read comes with the next call."""
        self._files = log_files(self._tree.names(self._directory))
        if not self._files and self._live is None:
            raise MissingError(f"{brief('/'.join(self._directory))} holds no log yet")
        try:
            if self._number < 0 and self._files:
                self._begin(self._files, sink)
            self._read_on(budget, sink)
        except OSError as error:
            raise UnreadableError(f"{brief('/'.join(self._directory))}: {brief(error.strerror or error)}") from None

    def _open(self, name: str) -> int:
        return self._tree.open_file((*self._directory, name))

    def _begin(self, files: Sequence[LogFile], sink: Follower) -> None:
        """Read the end of the start before, then start and end of this one's, and go on with the newest file."""
        newest = files[-1]
        self._number = newest.number
        before = [file for file in files if file.number < newest.number]
        rotated = [file for file in files if file.number == newest.number and not file.live]
        if before:
            self._once(before[-1], sink, tail=TAIL_BYTES)
        sink.container()
        if rotated:
            self._once(rotated[0], sink, head=HEAD_BYTES, tail=TAIL_BYTES if len(rotated) == 1 else 0)
        if len(rotated) > 1:
            self._once(rotated[-1], sink, tail=TAIL_BYTES)
        if newest.live:
            fd = self._open(newest.name)
            size = os.fstat(fd).st_size
            # One start's only file: its beginning has the size of the cache, so it is read from there.
            head = 0 if rotated else HEAD_BYTES
            offset = 0 if size <= head + TAIL_BYTES else size - TAIL_BYTES
            if offset and head:
                self._once(newest, sink, head=head)
            self._live = LiveFile(fd, offset, old_until=size)

    def _once(self, file: LogFile, sink: Follower, *, head: int = 0, tail: int = 0) -> None:
        # What was rotated away or became unreadable meanwhile is left out, and the rest is read.
        with suppress(SourceError, OSError):
            read_once(self._open(file.name), sink, head=head, tail=tail, packed=file.name.endswith(".gz"))

    def _follow(self) -> tuple[LiveFile, bool] | None:
        live = {file.number: file.name for file in self._files if file.live}
        name = live.get(self._number)  # of the same start, anew
        if name is not None and (following := self._replacement(lambda: self._open(name))) is not None:
            return following, False
        number = min((n for n in live if n > self._number), default=None)
        if number is None:
            return None
        following, self._number = LiveFile(self._open(live[number])), number
        return following, True
