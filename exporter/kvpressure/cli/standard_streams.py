"""Standard output and standard error that may be full: a command says so in one sentence and ends, whatever it prints.

Below the buffers, so that everything that prints goes this way: ours, click's, rich's and the interpreter's at its end.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

from kvpressure.cli.say import say

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CANNOT_WRITE: Final = 2
HEAD_IS_GONE: Final = 128 + signal.SIGPIPE
"""`| head` has read enough."""


class OutputError(Exception):
    """Standard output cannot be written; the message says why. No OSError: nobody takes it for that of another file."""


class _Out(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.strerror or str(error)) from error


class _Err(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError:  # there is nowhere left to say it
            return memoryview(data).nbytes


def guard() -> None:
    """Let both streams end the way this module says, for the rest of the process."""
    sys.stdout, sys.stderr = _over(sys.stdout, _Out), _over(sys.stderr, _Err)


def finish() -> None:
    """Write what is still held back. Raises OutputError and BrokenPipeError."""
    if sys.stdout is not None:
        sys.stdout.flush()


def tell(error: OutputError) -> None:
    """Say on standard error, if anybody reads that, that standard output cannot be written."""
    with suppress(OSError):
        say(f"kvpressure: standard output cannot be written: {error}", err=True)


def end_unwritten(error: OutputError) -> NoReturn:
    """End the process, saying why."""
    _discard()
    tell(error)
    sys.exit(CANNOT_WRITE)


def end_unread() -> NoReturn:
    """End the process as one whose reader has gone."""
    _discard()
    sys.exit(HEAD_IS_GONE)


def _discard() -> None:
    """Let nothing that is still held back be tried again as the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _over(stream: TextIO, raw: type[io.FileIO]) -> TextIO:
    """Return the same stream over our own `raw`; itself where it is no file, or closed."""
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (AttributeError, OSError, ValueError):
        return stream
    file = io.BufferedWriter(raw(descriptor, "w", closefd=False))
    buffered = stream.line_buffering if isinstance(stream, io.TextIOWrapper) else False
    return io.TextIOWrapper(file, encoding=stream.encoding, errors=stream.errors, line_buffering=buffered)
