"""Log lines on standard error, as logfmt or JSON: each is written soon, or dropped and counted."""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Final, TextIO, cast

import structlog

from kvpressure.printable import clean_lines

PATIENCE_SECONDS: Final = 0.1
"""How long a line may wait for the reader of the pipe. After a line that was dropped none waits until one is taken."""

_PIECE_BYTES: Final = select.PIPE_BUF
"""What a pipe that is said to have room takes at once."""


class LineWriter:
    """What logging needs of a stream. Writing raises nothing, and waits `PATIENCE_SECONDS` at most.

    Not bounded is a regular file on a file system that hangs: the kernel says of any file that it can be written.
    A line of which only a part was written is ended before the next one. From any thread.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._lock = threading.Lock()
        self._torn = self._impatient = False
        self.dropped = 0

    def write(self, text: str) -> int:
        """Write whole lines, or count one as dropped."""
        with self._lock:
            try:
                written = self._write(text)
            except (OSError, ValueError):  # full, too large, gone, closed
                written = False
            self.dropped += not written
            self._impatient = not written
        return len(text)

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    def _write(self, text: str) -> bool:
        if self._descriptor is None:
            if self._stream is None:
                return False
            self._stream.write(text)
            self._stream.flush()
            return True
        left = memoryview((("\n" if self._torn else "") + text).encode("utf-8", "backslashreplace"))
        while left:
            if not self._has_room(self._descriptor):
                return False
            count = os.write(self._descriptor, left[:_PIECE_BYTES])
            left = left[count:]
            self._torn = bool(left)
        return True

    def _has_room(self, descriptor: int) -> bool:
        # Not O_NONBLOCK, which would be in force for everybody who shares the pipe or the terminal.
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        return bool(poll.poll(0 if self._impatient else PATIENCE_SECONDS * 1000))


def _descriptor(stream: TextIO | None) -> int | None:
    """Return the stream's own, None where it is not a file of the system."""
    try:
        return None if stream is None else stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None


_writers: list[LineWriter] = []
"""The one that lines go to, once configured; those before it only for what they dropped."""


def dropped() -> int:
    """Return how many lines could not be written since the process began."""
    return sum(writer.dropped for writer in _writers)


def configure(level: str, form: str) -> None:
    """Set what is logged from now on. `level` is debug, info, warning or error; `form` is logfmt or json."""
    renderer = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.processors.LogfmtRenderer(key_order=["ts", "level", "event"], drop_missing=True)
    )
    writer = LineWriter(sys.stderr)
    _writers.append(writer)
    stream = cast("TextIO", writer)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            _printable,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    # Libraries warn through logging; their lines are rare and go to the same place.
    logging.basicConfig(
        stream=stream,
        level=logging.WARNING,
        format="level=%(levelname)s logger=%(name)s event=%(message)r",
    )
    logging.getLogger("aiohttp.access").setLevel(logging.ERROR)


def _printable(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Clean what is logged, without what is empty: it quotes names and errors of others, and is read on terminals."""
    known = ((key, value) for key, value in event.items() if value not in ("", None))
    return {key: clean_lines(value) if isinstance(value, str) else value for key, value in known}


QUIET_SECONDS: Final = 60.0


class RateLimitedLogger:
    """The first line about an event at once, then one per `QUIET_SECONDS`; `times` counts those since the last one.

    For a handful of fixed events. `tell` is a method of a logger, `monotonic` gives seconds.
    """

    def __init__(self, tell: Callable[..., object], monotonic: Callable[[], float]) -> None:
        self._tell = tell
        self._monotonic = monotonic
        self._suppressed: dict[str, int] = {}
        self._next: dict[str, float] = {}

    def __call__(self, event: str, **what: object) -> None:
        """Count one more; the line says `what` of the newest."""
        self._suppressed[event] = self._suppressed.get(event, 0) + 1
        now = self._monotonic()
        if now >= self._next.get(event, now):
            self._next[event] = now + QUIET_SECONDS
            self._tell(event, times=self._suppressed.pop(event), **what)
