"""Opens files below a directory and never anywhere else, whatever the names and links in it say or become meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from kvpressure.model.errors import MissingError, SourceError, UnreadableError
from kvpressure.net.open_files import NotAFileError, descriptor_at, without_foreign_links
from kvpressure.printable import brief

MAX_ENTRIES: Final = 4096


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
        return _opened(self._resolved(parts))

    def names(self, parts: Sequence[str]) -> tuple[str, ...]:
        """Return names in the directory at `parts`, at most `MAX_ENTRIES`. Raises SourceError."""
        path = self._resolved(parts)
        try:
            with os.scandir(path) as entries:
                return tuple(entry.name for _, entry in zip(range(MAX_ENTRIES), entries, strict=False))
        except OSError as error:
            raise _explained(error, path) from None

    def _resolved(self, parts: Sequence[str]) -> str:
        """Return the path that `parts` lead to. Raises OutsideError."""
        shown = "/".join((self._roots[0], *parts))
        if any(name in ("", ".", "..") or "/" in name or "\0" in name for name in parts):
            raise OutsideError(f"{brief(shown)} is not a path below the log directory")
        path = os.path.realpath(shown)
        if not path.startswith(tuple(os.path.realpath(root).rstrip("/") + "/" for root in self._roots)):
            raise OutsideError(
                f"{brief(shown)} is a symbolic link to {brief(path)}, outside of the directories that may be read;"
                " name that directory in logs.link_directories if it is meant",
            )
        return path


def open_named(path: Path) -> int:
    """Return a descriptor of the regular file that an operator named. Raise SourceError.

    Links that the log's owner put there are not followed: the exporter may read what that user may not.
    """
    try:
        return _opened(without_foreign_links(path))
    except NotAFileError as error:
        raise NotRegularError(f"{brief(path)} is not read: {error.strerror}") from None
    except (OSError, ValueError) as error:
        raise _explained(error, str(path)) from None


def _opened(path: str) -> int:
    try:
        return descriptor_at(path)
    except NotAFileError as error:
        raise NotRegularError(f"{brief(path)} is not read: {error.strerror}") from None
    except (OSError, ValueError) as error:
        raise _explained(error, path) from None


def identity(fd: int) -> tuple[int, int]:
    """Return what identifies an open file: device and inode."""
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


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
