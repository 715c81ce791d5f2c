"""Small text files that people write, read with a bound. LengthRouting from settings, which take time to import."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kvpressure.config.strict_yaml import ConfigError, Problem

_MAX_FILE_BYTES: Final = 1 << 20


def read_text(path: Path, *, shown: str = "", max_bytes: int = _MAX_FILE_BYTES) -> str:
    """Read a small configuration file as UTF-8; `shown` is its name in messages. Raises ConfigError."""
    name = shown or str(path)
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ConfigError([Problem(name, None, "", f"is larger than {max_bytes} bytes")])
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([Problem(name, None, "", f"cannot be read: {error.strerror or error}")]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(name, None, "", f"is not UTF-8 at byte {error.start}")]) from None
