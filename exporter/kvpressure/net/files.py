"""Detects changed files by `stat`: inotify works neither on NFS nor in every container."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

Stamp: TypeAlias = tuple[int, ...]
"""The version of a file's content, known without reading it."""


def stamp_of(status: os.stat_result) -> Stamp:
    """Return device, inode, size, modification and change time."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def stamp(path: Path) -> Stamp | None:
    """Return the version of the file behind symbolic links, as in a ConfigMap's volume; None where there is none."""
    try:
        return stamp_of(path.stat())
    except (OSError, ValueError):
        return None


class FileWatch:
    """Reports which of its files changed.

    A change is reported once two checks in a row found the same new version: a file that is half written, or missing
    during a rename, is not reported. Create the watch before reading the files, so that no change in between is lost.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._known = {path: stamp(path) for path in paths}
        self._last = dict(self._known)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files watched."""
        return tuple(self._known)

    @property
    def settling(self) -> frozenset[Path]:
        """Files with a change that the next check may confirm."""
        return frozenset(path for path, known in self._known.items() if self._last[path] != known)

    def look(self) -> frozenset[Path]:
        """Return the files that were created, changed or removed since the last check, each once."""
        changed = set()
        for path, known in self._known.items():
            stamps = stamp(path)
            if stamps != known and stamps == self._last[path]:
                changed.add(path)
                self._known[path] = stamps
            self._last[path] = stamps
        return frozenset(changed)

    def add(self, path: Path) -> None:
        """Watch one more file for changes from its current version."""
        self._known[path] = self._last[path] = stamp(path)

    def discard(self, path: Path) -> None:
        """Stop watching a file."""
        self._known.pop(path, None)
        self._last.pop(path, None)
