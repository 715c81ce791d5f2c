"""Long pages of all targets, read by one thread: those it knows at once, those it has to learn one after the other.

A page whose layout is remembered takes milliseconds and no step. One that has to be learned takes up to seconds and,
meanwhile, twenty times its size in memory: so the first never wait for the second, and only one of those is under way.
One thread, because it holds the interpreter: several would only take more of it from the event loop.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from kvpressure.promtext.lines import Steps

T = TypeVar("T")

_Job = tuple[Steps[Any], Callable[[Any, BaseException | None], None]]


class LongPages:
    """A daemon thread that starts with the first page; nothing waits for it when the process ends."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, steps: Steps[T]) -> asyncio.Future[T]:
        """Begin; the future has the result, or what was raised. Work whose future was cancelled goes on to its end."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((steps, partial(_settle, loop, future)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="long-pages", daemon=True)
            self._thread.start()
        return future

    def _serve(self) -> None:
        learning: deque[_Job] = deque()
        while True:
            while not learning or not self._jobs.empty():
                job = self._jobs.get()
                if not _step(job):
                    learning.append(job)
            if _step(learning[0]):
                learning.popleft()


def _step(job: _Job) -> bool:
    """Go on with a page; true when that was its end."""
    steps, settle = job
    try:
        next(steps)
    except StopIteration as done:
        settle(done.value, None)
    except Exception as error:  # noqa: BLE001 whatever it is, it belongs to the one who waits
        settle(None, error)
    else:
        time.sleep(0)  # the event loop first
        return False
    return True


def _settle(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
        loop.call_soon_threadsafe(settle)
