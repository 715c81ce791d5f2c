"""Opens files below a directory and never anywhere else, whatever the names and links in it say or become meanwhile.

What a path leads to is first only resolved (`O_PATH`, which opens nothing: a FIFO would block, a device may act). If
the kernel says that it lies below the directory, and it is a regular file, that very file is opened.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kvpressure.model.errors import MissingError, SourceError, UnreadableError
from kvpressure.net.open_files import NotAFileError, descriptor_of
from kvpressure.printable import brief

MAX_ENTRIES: Final = 4096
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class OutsideError(SourceError, reason="outside"):
    """The path leads out of the directories that may be read."""


class NotRegularError(SourceError, reason="not_a_file"):
    """It is no regular file, or none that may be followed."""


class PermissionDeniedError(SourceError, reason="permission"):
    """The system does not let this user read it."""


class Tree:
    """The directory `root`; links in it may lead into `root` and into the `further` directories."""

    def __init__(self, root: Path, further: Iterable[Path] = ()) -> None:
        self._roots = tuple(os.path.normpath(path) for path in (root, *further))

    def open_file(self, parts: Sequence[str]) -> int:
        """Return a descriptor of the regular file at `parts` below the root, open for reading. Raise SourceError."""
        return self._open(parts, directory=False)

    def names(self, parts: Sequence[str]) -> tuple[str, ...]:
        """Return names in the directory at `parts`, at most `MAX_ENTRIES`. Raises SourceError."""
        fd = self._open(parts, directory=True)
        try:
            with os.scandir(fd) as entries:
                return tuple(entry.name for _, entry in zip(range(MAX_ENTRIES), entries, strict=False))
        except OSError as error:
            raise _explained(error, self._shown(parts)) from None
        finally:
            os.close(fd)

    def _shown(self, parts: Sequence[str]) -> str:
        return "/".join((self._roots[0], *parts))

    def _open(self, parts: Sequence[str], *, directory: bool) -> int:
        shown = self._shown(parts)
        if any(name in ("", ".", "..") or "/" in name or "\0" in name for name in parts):
            raise OutsideError(f"{brief(shown)} is not a path below the log directory")
        self._require_inside(os.path.realpath(shown), shown)
        with _resolved(shown) as (path_fd, path):
            self._require_inside(path, shown)  # links may have changed meanwhile
            return _opened(path_fd, shown, directory=directory)

    def _require_inside(self, path: str, shown: str) -> None:
        roots = (os.path.realpath(root).rstrip("/") + "/" for root in self._roots)
        if not path.startswith(tuple(roots)):
            raise OutsideError(
                f"{brief(shown)} is a symbolic link to {brief(path)}, outside of the directories that may be read;"
                " name that directory in logs.link_directories if it is meant",
            )


def open_named(path: Path) -> int:
    """Return a descriptor of the regular file that an operator named. Raise SourceError.

    Links that the log's owner put there are not followed: the exporter may read what that user may not.
    """
    try:
        return descriptor_of(path, foreign=True)
    except NotAFileError as error:
        raise NotRegularError(f"{brief(path)} is not read: {error.strerror}") from None
    except (OSError, ValueError) as error:
        raise _explained(error, str(path)) from None


def identity(fd: int) -> tuple[int, int]:
    """Return what identifies an open file: device and inode."""
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


@contextmanager
def _resolved(path: str) -> Iterator[tuple[int, str]]:
    """Yield an `O_PATH` descriptor of what is there, and the kernel's path of it. Raises SourceError."""
    try:
        path_fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            yield path_fd, os.readlink(f"/proc/self/fd/{path_fd}")  # noqa: PTH115
        finally:
            os.close(path_fd)
    except (OSError, ValueError) as error:
        raise _explained(error, path) from None


def _opened(path_fd: int, shown: str, *, directory: bool = False) -> int:
    """Return a descriptor for reading what `path_fd` is of. Raises OSError, and SourceError for no regular file."""
    if not directory and not stat.S_ISREG(os.fstat(path_fd).st_mode):
        raise NotRegularError(f"{brief(shown)} is not a regular file; it is not read")
    return os.open(f"/proc/self/fd/{path_fd}", _FLAGS | (os.O_DIRECTORY if directory else 0))


def _explained(error: OSError | ValueError, shown: str) -> SourceError:
    code = error.errno if isinstance(error, OSError) else errno.EINVAL
    if code in (errno.ENOENT, errno.ENOTDIR):
        return MissingError(f"{brief(shown)} is not there")
    if code in (errno.EACCES, errno.EPERM):
        return PermissionDeniedError(
            f"{brief(shown)} may not be read by user {os.geteuid()}; logs of pods are mostly readable for the group 0:"
            " add it to the exporter's supplementary groups",
        )
    if code == errno.ELOOP:
        return OutsideError(f"{brief(shown)} is behind too many symbolic links")
    return UnreadableError(f"{brief(shown)} cannot be read: {brief(getattr(error, 'strerror', None) or error)}")
