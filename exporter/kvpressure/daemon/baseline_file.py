"""The baselines of the engines, kept across a restart of the exporter in one small file that the settings name.

It is not a history: a dozen numbers per engine, as they are now. The file is untrusted: size, age, structure, names and
ranges are checked, and an invalid file is ignored as a whole, with one line in the log.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from kvpressure.model.view import EngineKey
from kvpressure.net.schedule import Clock
from kvpressure.net.threads import in_own_thread
from kvpressure.signals.baseline import NAMES, Healthy

FORMAT: Final = "kvpressure baselines 1"
MAX_BYTES: Final = 8 << 20
MAX_AGE_SECONDS: Final = 7 * 86_400.0
"""Models, flags and traffic change within a week."""
MAX_VALUE: Final = 1e7
MAX_LABEL_LENGTH: Final = 1024
WRITE_SECONDS: Final = 60.0
LAST_WRITE_SECONDS: Final = 5.0
"""How long the exporter waits for the disk when it ends."""

Baselines = Mapping[EngineKey, Healthy]
log = structlog.get_logger("kvpressure.daemon.baseline_file")


class BaselineFile:
    """The file at `path`, None for none: read once at the start, written at most once a minute and at the end.

    It is written in a thread of its own, one write at a time: a disk that hangs delays nothing else.
    """

    def __init__(self, path: Path | None, clock: Clock, max_engines: int) -> None:
        self._path, self._clock, self._max_engines = path, clock, max_engines
        self._written = clock.monotonic()
        self._failed = False
        self._writing: asyncio.Future[None] | None = None

    def read(self) -> Baselines:
        """Return the baselines of the file, none where it is missing or invalid."""
        if self._path is None:
            return {}
        try:
            return parsed(_content(self._path), self._clock.wall(), self._max_engines)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("baselines are not restored, and are learned again", path=str(self._path), error=str(error))
            return {}

    def is_due(self) -> bool:
        """Return whether to write it: a minute after the last write, unless that is still under way."""
        idle = self._writing is None or self._writing.done()
        return self._path is not None and idle and self._clock.monotonic() - self._written >= WRITE_SECONDS

    def begin_write(self, baselines: Baselines) -> None:
        """Start replacing the file in a thread."""
        self._written = self._clock.monotonic()
        self._writing = in_own_thread(partial(self.write, baselines), "kvpressure-baselines")

    async def end(self, baselines: Baselines) -> None:
        """Write it for the last time, after the write under way; log where the disk takes too long."""
        if self._path is None:
            return
        try:
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                if self._writing is not None:
                    await self._writing
                await in_own_thread(partial(self.write, baselines), "kvpressure-baselines")
        except TimeoutError:
            log.warning("baselines are not written: the disk hangs", path=str(self._path))

    def write(self, baselines: Baselines) -> None:
        """Replace the file atomically; log the first of several failures."""
        if self._path is None or not baselines:  # before an engine is known, the file stays as it is
            return
        try:
            text = text_of(baselines, self._clock.wall())
            if len(text) > MAX_BYTES:
                raise OSError(f"{len(text)} bytes, and no more than {MAX_BYTES} would be read again")
            _replace(self._path, text)
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning("baselines cannot be written", path=str(self._path), error=str(error))
            self._failed = True


def text_of(baselines: Baselines, now: float) -> bytes:
    """Return the file's content, within the limits of `parsed`."""
    engines = [
        {"target": key.target, "model_name": key.model_name, "engine": key.rank, "healthy": _bounded(healthy)}
        for key, healthy in baselines.items()
        if max(map(len, (key.target, key.model_name, key.rank))) <= MAX_LABEL_LENGTH
    ]
    return json.dumps({"format": FORMAT, "written": now, "engines": engines}).encode()


def _bounded(healthy: Healthy) -> Healthy:
    """Return the values that can be read again; the healthy time is at most `MAX_VALUE`."""
    return {
        name: (mean, min(seconds, MAX_VALUE)) for name, (mean, seconds) in healthy.items() if 0 <= mean <= MAX_VALUE
    }


def parsed(text: bytes, now: float, max_engines: int) -> Baselines:
    """Return the baselines in a file's text. Raises ValueError where it is too large, foreign, damaged or old."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes")
    found = json.loads(text)
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("engines"), list):
        raise ValueError(f"not a file of {FORMAT!r}")
    written = _number(found.get("written"), "written", most=1e12)
    if not -WRITE_SECONDS <= now - written <= MAX_AGE_SECONDS:
        raise ValueError("written more than a week ago, or in the future")
    return dict(_engine(item) for item in found["engines"][:max_engines])


def _engine(item: Any) -> tuple[EngineKey, Healthy]:
    if not isinstance(item, dict) or not isinstance(item.get("healthy"), dict):
        raise ValueError("an engine is no object")
    target, model_name, rank = (_label(item.get(name)) for name in ("target", "model_name", "engine"))
    healthy = {}
    for name, pair in item["healthy"].items():
        if name not in NAMES or not isinstance(pair, list) or len(pair) != 2:
            raise ValueError("a value is not known")
        healthy[name] = (_number(pair[0], name), _number(pair[1], name))
    return EngineKey(target, model_name, rank), healthy


def _label(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_LABEL_LENGTH:
        raise ValueError("an engine has no name")
    return value


def _number(value: Any, name: str, most: float = MAX_VALUE) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ValueError(f"{name} is out of range")
    return float(value)


def _content(path: Path) -> bytes:
    """Return at most one byte more than is allowed. Raises ValueError for a pipe or a device, without waiting."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        return file.read(MAX_BYTES + 1)


def _replace(path: Path, text: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
