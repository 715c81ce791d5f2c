"""One child process of the event loop: its lines, its last words, its end. Nothing here blocks the loop.

Not asyncio.subprocess: a child stuck in uninterruptible sleep must be left behind without a thread waiting for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from kvpressure.model.errors import SourceError
from kvpressure.sources.gpu.backend import CrashedError

READ_BYTES: Final = 64 * 1024
LINE_BYTES: Final = 1024 * 1024
STDERR_BYTES: Final = 4096
POLL_SECONDS: Final = 0.01
MAX_LINES_A_SECOND: Final = 1000
"""A child writes one for each interval, of which the shortest is a tenth of a second; each costs the loop time."""
MAX_STDERR_BYTES_A_SECOND: Final = 1024 * 1024
"""What a library writes beyond it waits in the pipe, and the child with it."""


class _InSecond:
    """Counts what comes within each second of `clock`."""

    def __init__(self, clock: Callable[[], float], most: int) -> None:
        self._clock = clock
        self._most = most
        self._second = 0
        self._count = 0

    def exceeds(self, more: int) -> bool:
        """Whether, with so many more, there are more in this second than there may be."""
        if (second := int(self._clock())) != self._second:
            self._second, self._count = second, 0
        self._count += more
        return self._count > self._most


class ChildProcess:
    """A started child. `lines` yields its output lines, then why there are no more: None for their end.

    Must be made in the loop's thread.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.lines: asyncio.Queue[bytes | SourceError | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        # Forked from the loop's thread on purpose: the child's parent-death signal follows the thread that made it.
        # Its own process group, so that Ctrl-C reaches the exporter alone.
        self._process = subprocess.Popen(  # noqa: S603 our own module, no shell
            argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
        )
        assert self._process.stdout is not None  # noqa: S101 tells mypy what PIPE means
        assert self._process.stderr is not None  # noqa: S101
        self._out, self._err = self._process.stdout.fileno(), self._process.stderr.fileno()
        self._partial = b""
        self._last_words = b""
        self._lines_in_second = _InSecond(self._loop.time, MAX_LINES_A_SECOND)
        self._stderr_in_second = _InSecond(self._loop.time, MAX_STDERR_BYTES_A_SECOND)
        self._resting: asyncio.TimerHandle | None = None
        for fd, callback in ((self._out, self._on_out), (self._err, self._on_err)):
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, callback)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def _read(self, fd: int) -> bytes | None:
        """Return what there is to read; b"" at the end, None for nothing yet."""
        try:
            chunk = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return None
        if not chunk:
            self._loop.remove_reader(fd)
        return chunk

    def _on_out(self) -> None:
        chunk = self._read(self._out)
        if chunk is None:
            return
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        if self._lines_in_second.exceeds(len(lines)):
            self._loop.remove_reader(self._out)
            self.lines.put_nowait(CrashedError(f"the child process wrote over {MAX_LINES_A_SECOND} lines a second"))
            return
        for line in lines:
            self.lines.put_nowait(line)
        if len(self._partial) > LINE_BYTES:
            self._partial = b""
            self.lines.put_nowait(CrashedError(f"the child process wrote a line longer than {LINE_BYTES} bytes"))
        if not chunk:
            self.lines.put_nowait(None)

    def _on_err(self) -> None:
        chunk = self._read(self._err) or b""
        self._last_words = (self._last_words + chunk)[-STDERR_BYTES:]
        if chunk and self._stderr_in_second.exceeds(len(chunk)) and self._resting is None:
            self._loop.remove_reader(self._err)
            self._resting = self._loop.call_later(1.0, self._rested)

    def _rested(self) -> None:
        self._resting = None
        self._loop.add_reader(self._err, self._on_err)

    def last_words(self) -> str:
        """Return the last line on standard error."""
        if not self._process.stderr or self._process.stderr.closed:
            return ""
        self._on_err()
        lines = self._last_words.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def exit_code(self) -> int | None:
        """Return it as subprocess does: negative for a signal, None while the child lives. Never waits.

        All that the child started is killed when it has ended. That is before it is reaped: until then no other can
        have its process id.
        """
        if self._process.returncode is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self._kill_group()
            self._process.poll()
        return self._process.returncode

    def kill(self) -> None:
        """Send SIGKILL to it and all that it started; a child in uninterruptible sleep dies when the driver returns."""
        if self.exit_code() is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with suppress(OSError):  # none is left, or it runs as another user
            os.killpg(self.pid, signal.SIGKILL)

    async def wait(self, seconds: float) -> bool:
        """Whether the child ended within `seconds`."""
        until = self._loop.time() + seconds
        while self.exit_code() is None:
            if self._loop.time() >= until:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def stop(self, grace_seconds: float, kill_seconds: float = 1.0) -> bool:
        """End its input, then kill it. False when it is stuck in the kernel and had to be left behind."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            if not await self.wait(grace_seconds):
                self.kill()
                await self.wait(kill_seconds)
        finally:
            self.kill()
            if self._resting is not None:
                self._resting.cancel()
                self._resting = None
            for fd in (self._out, self._err):
                self._loop.remove_reader(fd)
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()
        return self.exit_code() is not None
