"""What a look back has finished so far, a line of JSON each, so that one that broke off goes on where it was.

The first line says what was asked; a file of another question is refused. A last line that was cut is left out. One
process at a time writes.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from kvpressure.lookback.errors import PrometheusError
from kvpressure.printable import brief

VERSION: Final = 1
LARGEST_BYTES: Final = 1 << 30


class Journal:
    """Finished pieces by key. Without a path nothing is kept. Use it as a context manager."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._done: dict[str, Any] = {}
        self._cut = False
        self._read_bytes = 0
        self.asked: dict[str, Any] | None = None
        if path is not None and path.exists():
            self._load(path)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            # What could not be written is tried once more as it closes; that it was not is said already.
            with suppress(OSError):
                self._file.close()

    def begin(self, asked: Mapping[str, Any]) -> None:
        """Say what is asked. Raises PrometheusError where the file is of another question, or cannot be written."""
        if self._path is None:
            return
        if self.asked is not None and self.asked != asked:
            differ = sorted(key for key in {*asked, *self.asked} if asked.get(key) != self.asked.get(key))
            text = f"{brief(self._path)} is of another question ({', '.join(differ)}); give another --resume file"
            raise PrometheusError("config", text)
        try:
            # What is in it names engines: for its owner alone.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            self._file = os.fdopen(descriptor, "a", encoding="utf-8")
            self._alone(descriptor)
            if self.asked is None:
                self._write({"version": VERSION, "asked": dict(asked)})
            elif self._cut:
                self._file.write("\n")
        except OSError as error:
            raise self._unwritten(error) from error

    def done(self, key: str) -> Any:
        """What a piece came to; None where it is not finished."""
        return self._done.get(key)

    def finish(self, key: str, value: Any) -> None:
        """A piece is finished. Raises PrometheusError where the file cannot be written, such as on a full disk."""
        if self._file is not None:
            try:
                self._write({"key": key, "value": value})
            except OSError as error:
                raise self._unwritten(error) from error
        else:
            self._done[key] = value

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._file.flush()

    def _alone(self, descriptor: int) -> None:
        """Raises PrometheusError where another process writes this file, or did since it was read."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            text = f"another process is writing {brief(self._path)}; wait for it, or give another --resume file"
            raise PrometheusError("config", text) from error
        except OSError:
            pass  # a file system that knows no locks
        if os.fstat(descriptor).st_size != self._read_bytes:
            raise PrometheusError("config", f"another process wrote {brief(self._path)} just now; run this again")

    def _unwritten(self, error: OSError) -> PrometheusError:
        return PrometheusError("config", f"cannot write {brief(self._path)}: {error.strerror or error}")

    def _load(self, path: Path) -> None:
        text = f"{brief(path)} is no file of a look back"
        try:
            if not path.is_file() or path.stat().st_size > LARGEST_BYTES:
                raise PrometheusError("config", f"{text}; give another --resume file")
            with path.open(encoding="utf-8", newline="\n") as file:
                for number, line in enumerate(file):
                    self._read_bytes += len(line.encode())
                    self._cut = not line.endswith("\n")
                    self._take(number, line, text)
        except (OSError, UnicodeDecodeError) as error:
            raise PrometheusError("config", f"cannot read {brief(path)}: {brief(error)}") from error

    def _take(self, number: int, line: str, text: str) -> None:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            if number == 0:
                raise PrometheusError("config", f"{text}; give another --resume file") from None
            return  # cut when it broke off
        if number == 0:
            if not isinstance(found, dict) or found.get("version") != VERSION:
                raise PrometheusError("config", f"{text} of this version; give another --resume file")
            if not isinstance(found.get("asked"), dict):
                raise PrometheusError("config", f"{text}; give another --resume file")
            self.asked = found["asked"]
        elif isinstance(found, dict) and isinstance(found.get("key"), str):
            self._done[found["key"]] = found.get("value")
