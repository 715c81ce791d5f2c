"""Opens files to read: regular ones only, so that none is waited for, and no links that were put there by others."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

_KINDS: Final = (
    (stat.S_ISLNK, "a symbolic link, which is not followed here"),
    (stat.S_ISFIFO, "a FIFO (a named pipe)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a directory"),
)
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_BINARY", 0)
_MAX_LINKS: Final = 40
"""As many as Linux follows."""


class NotAFileError(OSError):
    """A path that names something else than a regular file; `strerror` says what."""


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Return a file opened for reading. Raises OSError, of which NotAFileError for anything but a regular file.

    Without `follow` a link is none either: in a tree that came from elsewhere it may name any file of this machine.
    """
    # Before it is opened: that alone may wait, or do something to a device.
    _require((path.stat() if follow else path.lstat()).st_mode)
    return os.fdopen(_opened(path, _FLAGS if follow else _FLAGS | os.O_NOFOLLOW), "rb")


def descriptor_at(path: str) -> int:
    """Return a descriptor of the regular file at a path without links, also where others may put some. Raises OSError.

    Of it NotAFileError for anything else, and where a link has taken a place in the path meanwhile.
    """
    require_regular(Path(path))
    descriptor = _opened(path, _FLAGS | os.O_NOFOLLOW)
    if os.readlink(f"/proc/self/fd/{descriptor}") != path:  # noqa: PTH115
        os.close(descriptor)
        raise NotAFileError(errno.ELOOP, "its directory was replaced by a symbolic link meanwhile")
    return descriptor


def _opened(path: str | Path, flags: int) -> int:
    descriptor = os.open(path, flags)
    try:
        _require(os.fstat(descriptor).st_mode)  # it may be another by now
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(path: Path) -> None:
    """Raise OSError where nothing is there, NotAFileError where something else than a regular file is."""
    _require(path.stat().st_mode)


def _require(mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = next((name for is_one, name in _KINDS if is_one(mode)), "something else")
        raise NotAFileError(0, f"it is {what}, not a regular file")


def without_foreign_links(path: Path) -> str:
    """Return the path with the links in it resolved. Raises NotAFileError at one that neither root nor we made."""
    left, done, links = list(reversed(path.absolute().parts[1:])), "/", 0
    while left:
        part = left.pop()
        here = os.path.normpath(os.path.join(done, part))  # noqa: PTH118 - of `..` after a link, too
        found = os.lstat(here)
        if not stat.S_ISLNK(found.st_mode):
            done = here
            continue
        links += 1
        if found.st_uid not in (0, os.geteuid()) or links > _MAX_LINKS:
            raise NotAFileError(
                errno.ELOOP, f"{here} is a symbolic link made by user {found.st_uid}, which is not followed"
            )
        target = os.readlink(here)  # noqa: PTH115
        done = "/" if target.startswith("/") else done
        left += [name for name in reversed(target.split("/")) if name not in ("", ".")]
    return done
