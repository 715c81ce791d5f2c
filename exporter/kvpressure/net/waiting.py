"""The deadline of one wait for somebody else, which does not count against them what this process was too busy for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final

LATE_SECONDS: Final = 0.25
"""An event loop that notices a deadline this much too late was short of CPU: loops wake within milliseconds."""

GRACE_SECONDS: Final = 1.0


class StallTolerantTimeout:
    """`async with StallTolerantTimeout(seconds)`: raises TimeoutError when the block takes longer.

    Where the loop itself noticed the deadline late, what arrived meanwhile has not been looked at yet: the block gets
    `GRACE_SECONDS` more, once. `late_seconds` says how late the deadline was noticed.
    Measured on the event loop's clock.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.late_seconds = 0.0
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> StallTolerantTimeout:
        self._loop = asyncio.get_running_loop()
        await self._limit.__aenter__()
        self._due = self._loop.time() + self.seconds
        self._handle = self._loop.call_at(self._due, self._noticed)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _noticed(self) -> None:
        late = self._loop.time() - self._due
        if late > LATE_SECONDS and not self.late_seconds:
            self.late_seconds = late
            self._handle = self._loop.call_later(GRACE_SECONDS, self._noticed)
            return
        self._limit.reschedule(self._loop.time())

    def excuse(self) -> str:
        """Return what to add to a message about the other side when this process was part of the reason; else ""."""
        if not self.late_seconds:
            return ""
        return f"; this exporter itself was short of CPU meanwhile (it woke up {self.late_seconds:.1f} s late)"


ASK_AGAIN_SECONDS: Final = 3.0
"""Longer than anything takes that ends in order."""


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; their own errors are not raised.

    A task that is still running after a while is cancelled again: a cancellation can get lost in a library, as in
    `asyncio.wait_for` before Python 3.12 when what it waits for ends at the same moment.
    """
    ending = set(tasks)
    while ending:
        for task in ending:
            task.cancel()
        done, ending = await asyncio.wait(ending, timeout=ASK_AGAIN_SECONDS)
        for task in done:
            if not task.cancelled():
                task.exception()  # else the loop would log it a second time, when the task is forgotten
