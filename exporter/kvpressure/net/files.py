"""Notices changed files by looking at them: no inotify, which neither NFS nor every container gives."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

Stamp: TypeAlias = tuple[int, ...]
"""What tells one content of a file from another without reading it."""


def stamp_of(seen: os.stat_result) -> Stamp:
    """Return device, inode, size, and when content and metadata changed, of what `stat` gave."""
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def stamp(path: Path) -> Stamp | None:
    """Look at `path` through symbolic links (a ConfigMap update swaps one above it); None when it cannot be seen."""
    try:
        return stamp_of(path.stat())
    except (OSError, ValueError):
        return None


class FileWatch:
    """Tells which of its files changed.

    A change counts once two looks in a row have seen the same new state: a file half written or gone for the moment
    of a rename is none. Make the watch before reading the files, so that a change in between is not lost.
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
        """Files of which the last look saw a change that the next one may confirm."""
        return frozenset(path for path, known in self._known.items() if self._last[path] != known)

    def look(self) -> frozenset[Path]:
        """Give the files that appeared, changed or went away since the last look; each is reported once."""
        changed = set()
        for path, known in self._known.items():
            seen = stamp(path)
            if seen != known and seen == self._last[path]:
                changed.add(path)
                self._known[path] = seen
            self._last[path] = seen
        return frozenset(changed)

    def add(self, path: Path) -> None:
        """Watch one more file, from its present state."""
        self._known[path] = self._last[path] = stamp(path)

    def discard(self, path: Path) -> None:
        """Stop watching a file."""
        self._known.pop(path, None)
        self._last.pop(path, None)
