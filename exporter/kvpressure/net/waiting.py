"""Deadlines that tolerate this process being short of CPU, and cancelling of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final

LATE_SECONDS: Final = 0.25
"""An event loop that wakes this much too late was short of CPU: loops wake within milliseconds."""

GRACE_SECONDS: Final = 1.0


class StallTolerantTimeout:
    """`async with StallTolerantTimeout(seconds)`: raises TimeoutError when the block takes longer.

    Where the event loop itself woke late, data that arrived has not been read yet: the block gets `GRACE_SECONDS` more,
    once. `late_seconds` is how late the loop woke. Measured on the event loop's clock.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.late_seconds = 0.0
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> StallTolerantTimeout:
        self._loop = asyncio.get_running_loop()
        await self._limit.__aenter__()
        self._due = self._loop.time() + self.seconds
        self._handle = self._loop.call_at(self._due, self._expired)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _expired(self) -> None:
        late = self._loop.time() - self._due
        if late > LATE_SECONDS and not self.late_seconds:
            self.late_seconds = late
            self._handle = self._loop.call_later(GRACE_SECONDS, self._expired)
            return
        self._limit.reschedule(self._loop.time())

    def excuse(self) -> str:
        """Return what to add to a timeout's message where this process was short of CPU, else ""."""
        if not self.late_seconds:
            return ""
        return f"; this exporter itself was short of CPU meanwhile (it woke up {self.late_seconds:.1f} s late)"


CANCEL_AGAIN_SECONDS: Final = 3.0
"""Longer than any task takes to end."""


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; their errors are not raised.

    A task that is still running after a while is cancelled again: a library can lose a cancellation, as
    `asyncio.wait_for` does before Python 3.12 when its task ends at the same moment.
    """
    ending = set(tasks)
    while ending:
        for task in ending:
            task.cancel()
        done, ending = await asyncio.wait(ending, timeout=CANCEL_AGAIN_SECONDS)
        for task in done:
            if not task.cancelled():
                task.exception()  # else the loop logs it again when the task is garbage collected
