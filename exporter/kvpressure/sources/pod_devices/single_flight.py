"""Blocking reads in a thread of their own, never more than one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlightThread(Generic[T]):
    """Runs `read` in a daemon thread.

    A read that hangs (the kernel's file of a sick GPU may) costs one thread, not one for each attempt, and does not
    keep the process from ending.
    """

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._pending: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """Start a read, or wait for the one under way; raises what it raises. Cancelling leaves the read running."""
        if self._pending is None:
            self._pending = self._start()
        pending = self._pending
        try:
            return await asyncio.shield(pending)
        finally:
            if pending.done() and self._pending is pending:
                self._pending = None

    def _start(self) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(value: T | None, error: Exception | None) -> None:
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)  # type: ignore[arg-type]

        def read() -> None:
            value: T | None = None
            failure: Exception | None = None
            try:
                value = self._read()
            except Exception as error:  # noqa: BLE001 - handed to whoever waits
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile: nobody waits for the answer
                loop.call_soon_threadsafe(settle, value, failure)

        threading.Thread(target=read, name="single-flight", daemon=True).start()
        return answer
