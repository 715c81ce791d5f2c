"""Files that a user names for us to write: opened as what they are, never through a symbolic link."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A pipe would hang, were it waited for."""


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """A descriptor of a regular file. Raises OSError, whose strerror says what else is there."""
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


def write_own(path: Path, text: str) -> None:
    """Write a text in place of what the file held. Raises OSError."""
    with os.fdopen(open_own(path, os.O_WRONLY | os.O_CREAT, 0o666), "w", encoding="utf-8") as file:
        file.truncate(0)
        file.write(text)
