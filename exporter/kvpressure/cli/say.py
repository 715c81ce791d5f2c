"""The only way that commands print, beside `report.CleanConsole`: what they show of the world is made safe here.

Standard output and standard error may be full: a command says so in one sentence and ends, whatever it prints. That is
done below the buffers, so that everything that prints goes this way: ours, click's, rich's and the interpreter's.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

import click

from kvpressure.model.record import SourceError
from kvpressure.printable import clean, json_text

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CANNOT_TELL: Final = 2
"""What commands end with when they can neither find something nor say that there is nothing."""
HEAD_IS_GONE: Final = 128 + signal.SIGPIPE
"""`| head` has read enough."""


def say(*lines: object, err: bool = False) -> None:
    """Print lines, to standard error with `err`. Each stays one: a name cannot begin another."""
    click.echo("\n".join(clean(str(line)) for line in lines), err=err)  # noqa: TID251 - here it is clean


def say_json(value: Any, *, indent: int | None = 1) -> None:
    """Print JSON, in one line without `indent`; its strings are escaped."""
    click.echo(json_text(value, indent=indent, separators=None if indent else (",", ":")))  # noqa: TID251


def fail(*lines: object) -> NoReturn:
    """Print lines to standard error and end with exit code 2."""
    say(*lines, err=True)
    sys.exit(CANNOT_TELL)


class CliError(SourceError):
    """A command cannot go on; the sentence says why, where, and what to do."""

    def __init__(self, sentence: str) -> None:
        super().__init__("cli", sentence)


class OutputError(Exception):
    """Standard output cannot be written; the message says why. No OSError: nobody takes it for that of another file."""


_STDERR: Final = 2


class _Guarded(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            if self.fileno() == _STDERR:  # there is nowhere left to say it
                return memoryview(data).nbytes
            raise OutputError(error.strerror or str(error)) from error


def guard_streams() -> None:
    """Let both streams end the way this module says, for the rest of the process."""
    sys.stdout, sys.stderr = _over(sys.stdout), _over(sys.stderr)


def finish() -> None:
    """Write what is still held back. Raises OutputError and BrokenPipeError."""
    if sys.stdout is not None:
        sys.stdout.flush()


def tell_unwritten(error: OutputError) -> None:
    """Say on standard error, if anybody reads that, that standard output cannot be written."""
    with suppress(OSError):
        say(f"kvpressure: standard output cannot be written: {error}", err=True)


def end_unwritten(error: OutputError) -> NoReturn:
    """End the process, saying why."""
    _discard()
    tell_unwritten(error)
    sys.exit(CANNOT_TELL)


def end_unread() -> NoReturn:
    """End the process as one whose reader has gone."""
    _discard()
    sys.exit(HEAD_IS_GONE)


def _discard() -> None:
    """Let nothing that is still held back be tried again as the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _over(stream: TextIO) -> TextIO:
    """Return the same stream over a guarded file; itself where it is no file, or closed."""
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (AttributeError, OSError, ValueError):
        return stream
    file = io.BufferedWriter(_Guarded(descriptor, "w", closefd=False))
    buffered = stream.line_buffering if isinstance(stream, io.TextIOWrapper) else False
    return io.TextIOWrapper(file, encoding=stream.encoding, errors=stream.errors, line_buffering=buffered)
