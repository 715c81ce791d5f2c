"""Files that a user names for us to write: opened as what they are, never through a symbolic link."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A pipe would hang, were it waited for."""


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """Return a descriptor of a regular file. Raises OSError, whose strerror says what else is there."""
    try:
        descriptor = os.open(path, flags | _FLAGS, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "it is a symbolic link, which is not followed; name the file itself") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file; give another name")
    return descriptor


def write_own(path: Path, content: bytes) -> None:
    """Write in place of what the file held, whole or not at all: an older one survives a full disk. Raises OSError."""
    mode = None
    with contextlib.suppress(FileNotFoundError):
        older = open_own(path, os.O_WRONLY)
        mode = stat.S_IMODE(os.fstat(older).st_mode)
        os.close(older)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = open_own(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)  # where it did not come to the end: a full disk, or Ctrl-C
