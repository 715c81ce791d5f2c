"""Files that somebody named and that are none: opening a FIFO waits for whoever writes to it, maybe for ever."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

_KINDS: Final = (
    (stat.S_ISFIFO, "a FIFO (a named pipe)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a directory"),
)


class NotAFileError(OSError):
    """A path that names something else than a regular file; `strerror` says what."""


def require_regular(path: Path) -> None:
    """Raise OSError where nothing is there, NotAFileError where something else than a regular file is."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        what = next((name for is_one, name in _KINDS if is_one(mode)), "something else")
        raise NotAFileError(0, f"it is {what}, not a regular file")
