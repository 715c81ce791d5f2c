"""Files that an operator named: small texts read with a bound, regular ones; and those that are written for a user.

The latter are opened as what they are, never through a symbolic link. Imports no settings, which take long.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from kvpressure.config.strict_yaml import ConfigError, Problem
from kvpressure.net.open_files import open_regular

_MAX_FILE_BYTES: Final = 1 << 20


def read_text(path: Path) -> str:
    """Read a small configuration file as UTF-8. Raises ConfigError."""
    name = str(path)
    try:
        with open_regular(path) as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise ConfigError([Problem(name, None, "", f"is larger than {_MAX_FILE_BYTES} bytes")])
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([Problem(name, None, "", f"cannot be read: {error.strerror or error}")]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(name, None, "", f"is not UTF-8 at byte {error.start}")]) from None


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
    """Replace a file's content, wholly or not at all: an older one survives a full disk. Raises OSError."""
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
