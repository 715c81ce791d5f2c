"""Log lines on standard error, as logfmt or JSON."""

from __future__ import annotations

import logging
import sys
from typing import TextIO, cast

import structlog

from kvpressure.line_writer import LineWriter
from kvpressure.printable import clean_lines

_writers: list[LineWriter] = []
"""The one that lines go to, once configured; those before it only for what they dropped."""


def dropped() -> int:
    """How many lines could not be written since the process began."""
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
    stream = cast(TextIO, writer)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            _without_empty,
            _printable,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    # Libraries warn through logging; their lines are rare and go to the same place.
    logging.basicConfig(
        stream=cast(TextIO, writer),
        level=logging.WARNING,
        format="level=%(levelname)s logger=%(name)s event=%(message)r",
    )
    logging.getLogger("aiohttp.access").setLevel(logging.ERROR)


def _without_empty(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {key: value for key, value in event.items() if value not in ("", None)}


def _printable(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """What is logged quotes names and errors of others, and is read on terminals."""
    return {key: clean_lines(value) if isinstance(value, str) else value for key, value in event.items()}
