"""The journal of a systemd unit, through a `journalctl` that follows it."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Final

from kvpressure.model.errors import SourceError
from kvpressure.printable import brief
from kvpressure.sources.logs.lines import MAX_TEXT_BYTES, Line
from kvpressure.sources.logs.live import BACKLOG_SECONDS
from kvpressure.sources.logs.safe_open import PermissionDeniedError

if TYPE_CHECKING:
    from kvpressure.sources.logs.follower import Follower

MAX_RECORD_BYTES: Final = 512 * 1024
HISTORY_LINES: Final = 2000
RETRY_READS: Final = 15
"""Reads between two starts of a journalctl that ends at once."""
_STDERR_BYTES: Final = 4096
_UNSEEN: Final = ("insufficient permissions", "not seeing messages from other users")


class NoJournalctlError(SourceError, reason="no_journalctl"):
    """There is no journalctl that can be started."""


class JournalctlEndedError(SourceError, reason="ended"):
    """journalctl has ended."""


class JournalLog:
    """Reads one unit's lines as they come; not safe for use from several threads.

    The pipe holds what was not read, so journalctl waits for us; one that is too far behind is started anew.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._process: subprocess.Popen[bytes] | None = None
        self._error: SourceError | None = None
        self._rest = 0  # reads until the next start
        self._pending = b""
        self._complaints = b""
        self._cursor = ""
        self._invocation = ""
        self._full = 0

    def read(self, budget: int, sink: Follower) -> None:
        """Read on, at most `budget` bytes of records. Raises SourceError."""
        if self._process is None and self._rest > 0 and self._error is not None:
            self._rest -= 1
            raise self._error
        try:
            process = self._process or self._start()
            done = self._take(process, budget, sink)
            self._complain(process)
        except SourceError as error:
            self._error, self._rest = error, RETRY_READS
            self.close()
            raise
        self._full = self._full + 1 if done >= budget else 0
        if self._full > BACKLOG_SECONDS:
            self.close()
            self._cursor = ""
            self._start(skip=True)
            sink.skipped()

    def close(self) -> None:
        """End journalctl."""
        process = self._process
        self._process = None
        self._pending = b""
        self._complaints = b""
        self._full = 0
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def _start(self, *, skip: bool = False) -> subprocess.Popen[bytes]:
        since = f"--lines={0 if skip else HISTORY_LINES}"
        if self._cursor and not skip:
            since = f"--after-cursor={self._cursor}"
        fields = "--output-fields=MESSAGE,_SYSTEMD_INVOCATION_ID"
        command = ["journalctl", "--unit", self._unit, "--output=json", fields, "--no-pager", "--follow", since]
        try:
            self._process = subprocess.Popen(  # noqa: S603 no shell; the unit's name was checked
                command,
                env={**os.environ, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
            )
        except OSError as error:
            raise NoJournalctlError(
                f"journalctl cannot be started ({brief(error.strerror or error)}), so the journal of"
                f" {brief(self._unit)} is not read; install systemd's tools or give a path instead",
            ) from None
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
        return self._process

    def _take(self, process: subprocess.Popen[bytes], budget: int, sink: Follower) -> int:
        done = 0
        while done < budget:
            data = _available(process.stdout, budget - done)
            if not data:
                break
            done += len(data)
            *records, self._pending = (self._pending + data).split(b"\n")
            for record in records:
                self._record(record, sink)
            # A record that grows beyond the bound loses its beginning, so that its end is no record either.
            self._pending = self._pending[-MAX_RECORD_BYTES:]
        return done

    def _record(self, record: bytes, sink: Follower) -> None:
        try:
            fields = json.loads(record)
            message = fields["MESSAGE"]  # a list of byte values where it is not UTF-8
            text = bytes(message).decode("utf-8", "replace") if isinstance(message, list) else str(message)
            stamp = datetime.fromtimestamp(int(fields["__REALTIME_TIMESTAMP"]) / 1e6, UTC).isoformat()
        except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
            return
        self._cursor = str(fields.get("__CURSOR", ""))
        invocation = str(fields.get("_SYSTEMD_INVOCATION_ID", ""))
        if invocation != self._invocation:
            self._invocation = invocation
            sink.container()
        for line in text[:MAX_TEXT_BYTES].split("\n"):
            sink.line(Line(line, stamp))

    def _complain(self, process: subprocess.Popen[bytes]) -> None:
        """Raise SourceError when journalctl says that it may not see the journal, or has ended."""
        self._complaints = (self._complaints + _available(process.stderr, _STDERR_BYTES))[-_STDERR_BYTES:]
        words = self._complaints.decode("utf-8", "replace")
        if any(phrase in words for phrase in _UNSEEN):
            raise PermissionDeniedError(
                f"user {os.geteuid()} may not read the journal of {brief(self._unit)};"
                " add it to the group systemd-journal",
            )
        if process.poll() is not None:
            last = words.strip().splitlines()[-1:] or [""]
            raise JournalctlEndedError(f"journalctl ended with {process.returncode}: {brief(last[0])}")


def _available(stream: IO[bytes] | None, most: int) -> bytes:
    """Return what can be read without waiting."""
    if stream is None:
        return b""
    try:
        return os.read(stream.fileno(), most)
    except BlockingIOError:
        return b""
