"""A thread that does one blocking thing at a time for a source, and that nobody has to wait for.

Not the loop's default executor: a file system that hangs would take its threads away from everybody, and the
interpreter waits for them when it ends.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from kvpressure.model.errors import SourceError

T = TypeVar("T")


class Worker:
    """Runs calls in a daemon thread of its own, which starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = False

    async def run(self, call: Callable[[], T]) -> T:
        """The result of `call`, or what it raises.

        Raises SourceError at once while the call before has not returned: it was given up, but it holds the thread.
        """
        if self._busy:
            raise SourceError("timeout", f"a read of {self._name} that was given up still hangs in the kernel")
        self._busy = True
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._calls.put(lambda: self._do(call, loop, answer))
        if self._thread is None:
            self._thread = threading.Thread(
                target=_serve, args=(self._calls,), name=f"kvpressure-{self._name}", daemon=True
            )
            self._thread.start()
        return await answer

    def stop(self) -> None:
        """Let the thread end when it is through with its call."""
        self._calls.put(None)
        self._calls, self._thread = queue.SimpleQueue(), None

    def _do(self, call: Callable[[], T], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T]) -> None:
        give: Callable[[], None]
        try:
            give = partial(answer.set_result, call())
        except BaseException as error:  # noqa: BLE001 whatever it is, it belongs to the one who waits
            give = partial(answer.set_exception, error)
        self._busy = False
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(lambda: None if answer.done() else give())


def _serve(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
