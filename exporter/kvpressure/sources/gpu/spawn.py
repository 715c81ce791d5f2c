"""One child process seen from the event loop: its lines, its last words, its end. Nothing here blocks the loop.

Not asyncio.subprocess: a child stuck in uninterruptible sleep must be left behind without a thread waiting for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

READ_BYTES: Final = 64 * 1024
LINE_BYTES: Final = 1024 * 1024
STDERR_BYTES: Final = 4096
POLL_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Ended:
    """Put among the lines when there will be no more; both are "" for the end of the child's output."""

    reason: str = ""
    why: str = ""


class ChildProcess:
    """A started child; `lines` yields its output lines and then one `Ended`. Must be made in the loop's thread."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.lines: asyncio.Queue[bytes | Ended] = asyncio.Queue()
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
        for fd, callback in ((self._out, self._on_out), (self._err, self._on_err)):
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, callback)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def _read(self, fd: int) -> bytes | None:
        """What there is to read; b"" at the end, None for nothing yet."""
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
        for line in lines:
            self.lines.put_nowait(line)
        if len(self._partial) > LINE_BYTES:
            self._partial = b""
            self.lines.put_nowait(Ended("crashed", f"the child process wrote a line longer than {LINE_BYTES} bytes"))
        if not chunk:
            self.lines.put_nowait(Ended())

    def _on_err(self) -> None:
        self._last_words = (self._last_words + (self._read(self._err) or b""))[-STDERR_BYTES:]

    def last_words(self) -> str:
        """The last line on standard error."""
        if not self._process.stderr or self._process.stderr.closed:
            return ""
        self._on_err()
        lines = self._last_words.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def exit_code(self) -> int | None:
        """As subprocess gives it: negative for a signal, None while the child lives. Never waits."""
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL; a child in uninterruptible sleep dies when the driver lets it go."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)

    async def wait(self, seconds: float) -> bool:
        """Whether the child ended within `seconds`."""
        until = self._loop.time() + seconds
        while self._process.poll() is None:
            if self._loop.time() >= until:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def stop(self, grace_seconds: float, kill_seconds: float = 1.0) -> bool:
        """Ask (by ending its input), then kill. False when it is stuck in the kernel and had to be left behind."""
        self._close_input()
        try:
            if not await self.wait(grace_seconds):
                self.kill()
                await self.wait(kill_seconds)
        finally:
            self.kill()
            self._close()
        return self._process.poll() is not None

    def _close_input(self) -> None:
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def _close(self) -> None:
        for fd in (self._out, self._err):
            self._loop.remove_reader(fd)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
