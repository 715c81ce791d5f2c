"""Printing of commands, beside `console.CleanConsole`: foreign text is made safe here.

Where standard output cannot be written, a command prints one sentence on standard error and ends. That is done below
the buffers, for everything that prints: this package, click, rich and the interpreter.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

import click

from kvpressure.model.errors import SourceError
from kvpressure.printable import clean, json_text

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CANNOT_TELL: Final = 2
"""Exit code of commands that have no result."""
READER_IS_GONE: Final = 128 + signal.SIGPIPE
"""Exit code where the reader closed the pipe, as `| head` does."""


def say(*lines: object, err: bool = False) -> None:
    """Print lines, to standard error with `err`; a line break in foreign text does not begin another."""
    click.echo("\n".join(clean(str(line)) for line in lines), err=err)  # noqa: TID251 - here it is clean


def say_json(value: Any, *, indent: int | None = 1) -> None:
    """Print JSON, on one line without `indent`."""
    click.echo(json_text(value, indent=indent, separators=None if indent else (",", ":")))  # noqa: TID251


def fail(*lines: object) -> NoReturn:
    """Print lines to standard error and exit with code 2."""
    say(*lines, err=True)
    sys.exit(CANNOT_TELL)


class CliError(SourceError, reason="cli"):
    """A command cannot continue; the sentence says why, where, and what to do."""


class OutputError(Exception):
    """Standard output cannot be written; the message says why. Not an OSError, which could be another file's."""


_STDERR: Final = 2


class _Guarded(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            if self.fileno() == _STDERR:  # it cannot be reported
                return memoryview(data).nbytes
            raise OutputError(error.strerror or str(error)) from error


def guard_streams() -> None:
    """Raise OutputError for failed writes to standard output, and ignore those to standard error, from now on."""
    sys.stdout, sys.stderr = _over(sys.stdout), _over(sys.stderr)


def finish() -> None:
    """Flush standard output. Raises OutputError and BrokenPipeError."""
    if sys.stdout is not None:
        sys.stdout.flush()


def report_unwritten(error: OutputError) -> None:
    """Print on standard error, where that is open, that standard output cannot be written."""
    with suppress(OSError):
        say(f"kvpressure: standard output cannot be written: {error}", err=True)


def end_unwritten(error: OutputError) -> NoReturn:
    """Report the error and exit with code 2."""
    _discard()
    report_unwritten(error)
    sys.exit(CANNOT_TELL)


def end_unread() -> NoReturn:
    """Exit as a process whose reader is gone."""
    _discard()
    sys.exit(READER_IS_GONE)


def _discard() -> None:
    """Discard buffered output, which the interpreter would write again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _over(stream: TextIO) -> TextIO:
    """Return the stream over a guarded file, unchanged where it is no file, or closed."""
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (AttributeError, OSError, ValueError):
        return stream
    file = io.BufferedWriter(_Guarded(descriptor, "w", closefd=False))
    buffered = stream.line_buffering if isinstance(stream, io.TextIOWrapper) else False
    return io.TextIOWrapper(file, encoding=stream.encoding, errors=stream.errors, line_buffering=buffered)
