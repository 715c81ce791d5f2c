"""Opens files below a directory and never anywhere else, whatever the names and links in it say or become meanwhile.

Every step is an open relative to the directory before, without following links. A symbolic link is read and its path
walked in the same way, from the root it leads into; one that leads out of all roots is refused. Only regular files are
opened: a FIFO would block and a device may act on being opened.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from kvpressure.model.record import SourceError
from kvpressure.printable import brief

MAX_LINKS: Final = 8
MAX_ENTRIES: Final = 4096
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Tree:
    """The directory `root`; links in it may lead into `root` and into the `further` directories."""

    def __init__(self, root: Path, further: Iterable[Path] = ()) -> None:
        self._roots = tuple(os.path.normpath(path) for path in (root, *further))

    def open_file(self, parts: Sequence[str]) -> int:
        """Return a descriptor of the regular file at `parts` below the root, open for reading. Raise SourceError."""
        return self._walk(parts, directory=False)

    def names(self, parts: Sequence[str]) -> tuple[str, ...]:
        """Names in the directory at `parts`, at most `MAX_ENTRIES`. Raises SourceError."""
        fd = self._walk(parts, directory=True)
        try:
            with os.scandir(fd) as entries:
                return tuple(entry.name for _, entry in zip(range(MAX_ENTRIES), entries, strict=False))
        except OSError as error:
            raise _explained(error, self._shown(parts)) from None
        finally:
            os.close(fd)

    def _shown(self, parts: Sequence[str]) -> str:
        return "/".join((self._roots[0], *parts))

    def _walk(self, parts: Sequence[str], *, directory: bool) -> int:
        shown = self._shown(parts)
        todo, links = deque(parts), 0
        fd, here = -1, self._roots[0]
        try:
            fd = _open_root(here)
            while todo:
                name = todo.popleft()
                if name in ("", ".", "..") or "/" in name or "\0" in name:
                    raise SourceError("outside", f"{brief(shown)} is not a path below the log directory")
                target = _link(fd, name)
                if target is None:
                    wants_directory = bool(todo) or directory
                    fd, here = _step(fd, name, shown, directory=wants_directory), f"{here}/{name}"
                    continue
                links += 1
                if links > MAX_LINKS:
                    raise SourceError("outside", f"{brief(shown)} is behind too many symbolic links")
                here, rest = self._inside(os.path.normpath(f"{here}/{target}" if target[:1] != "/" else target), shown)
                todo.extendleft(reversed(rest))
                os.close(fd)
                fd = -1
                fd = _open_root(here)
        except OSError as error:
            _close(fd)
            raise _explained(error, shown) from None
        except BaseException:
            _close(fd)
            raise
        return fd

    def _inside(self, path: str, shown: str) -> tuple[str, list[str]]:
        for root in self._roots:
            if path.startswith(root.rstrip("/") + "/"):
                return root, path[len(root.rstrip("/")) + 1 :].split("/")
        raise SourceError(
            "outside",
            f"{brief(shown)} is a symbolic link to {brief(path)}, outside of the directories that may be read;"
            " name that directory in logs.link_directories if it is meant",
        )


def open_regular(path: Path) -> int:
    """Return a descriptor of the regular file that an operator named; links are followed. Raise SourceError."""
    try:
        return _opened(os.fspath(path), os.stat(path), {"flags": _FLAGS & ~os.O_NOFOLLOW}, str(path))  # noqa: PTH116
    except (OSError, ValueError) as error:
        raise _explained(error, str(path)) from None


def identity(fd: int) -> tuple[int, int]:
    """Return what identifies an open file: device and inode."""
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


def _open_root(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _link(parent: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def _step(parent: int, name: str, shown: str, *, directory: bool) -> int:
    """Open one name and close its parent; the parent stays open when this raises."""
    if directory:
        fd = os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=parent)
    else:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        fd = _opened(name, info, {"flags": _FLAGS, "dir_fd": parent}, shown)
    os.close(parent)
    return fd


def _opened(name: str, info: os.stat_result, how: dict[str, int], shown: str) -> int:
    if not stat.S_ISREG(info.st_mode):
        raise SourceError("not_a_file", f"{brief(shown)} is not a regular file; it is not read")
    fd = os.open(name, **how)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SourceError("not_a_file", f"{brief(shown)} is not a regular file; it is not read")
    return fd


def _explained(error: OSError | ValueError, shown: str) -> SourceError:
    code = error.errno if isinstance(error, OSError) else errno.EINVAL
    if code in (errno.ENOENT, errno.ENOTDIR):
        return SourceError("missing", f"{brief(shown)} is not there")
    if code in (errno.EACCES, errno.EPERM):
        return SourceError(
            "permission",
            f"{brief(shown)} may not be read by user {os.geteuid()}; logs of pods are mostly readable for the group 0:"
            " add it to the exporter's supplementary groups",
        )
    if code == errno.ELOOP:
        return SourceError("outside", f"{brief(shown)} became a symbolic link while it was opened")
    return SourceError("io", f"{brief(shown)} cannot be read: {brief(getattr(error, 'strerror', None) or error)}")


def _close(fd: int) -> None:
    if fd >= 0:
        with suppress(OSError):
            os.close(fd)
