"""Files that somebody named: small texts, read with a bound, and regular ones. Imports no settings, which take long."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from kvpressure.config.strict_yaml import ConfigError, Problem

_MAX_FILE_BYTES: Final = 1 << 20


def read_text(path: Path) -> str:
    """Read a small configuration file as UTF-8. Raises ConfigError."""
    name = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise ConfigError([Problem(name, None, "", f"is larger than {_MAX_FILE_BYTES} bytes")])
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([Problem(name, None, "", f"cannot be read: {error.strerror or error}")]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(name, None, "", f"is not UTF-8 at byte {error.start}")]) from None


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
