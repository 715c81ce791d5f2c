"""Blocking calls in daemon threads: one that hangs in the kernel delays nothing else.

Not in the loop's default executor: a few calls that hang would occupy its threads, and the interpreter waits for them
when it ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Generic, TypeVar

from kvpressure.model.errors import InternalError, SourceError, TimedOutError
from kvpressure.net.budget import Share
from kvpressure.printable import brief

T = TypeVar("T")


def bug(error: Exception) -> SourceError:
    """Return the error in a source's health for an exception that its code does not expect."""
    return InternalError(f"{type(error).__name__}: {brief(error)}; please report this")


def in_own_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Start `call` in a new thread; return the future of its result or exception."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    threading.Thread(target=_run, args=(loop, answer, call), name=name, daemon=True).start()
    return answer


def _run(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T], call: Callable[[], T]) -> None:
    settle: Callable[[], None]
    try:
        settle = partial(answer.set_result, call())
    except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
        settle = partial(answer.set_exception, error)
    with suppress(RuntimeError):  # the loop is closed, and the future no longer awaited
        loop.call_soon_threadsafe(_settle, answer, settle)
    # An error's traceback holds this frame. If that held the error, what the call has read, maybe megabytes, would
    # wait for the garbage collector, which runs rarely.
    del answer, settle


def _settle(answer: asyncio.Future[T], settle: Callable[[], None]) -> None:
    if not answer.done():
        settle()


_HOP_SECONDS: Final = 0.0002
"""What a call in a thread takes of the event loop's."""
_WAIT_SECONDS: Final = 0.05


async def on_share(share: Share, call: Callable[..., T], *arguments: object) -> T:
    """Return the result of a call in a thread, begun when the source's share allows it."""
    while not share.allows():  # noqa: ASYNC110 - time alone gives more
        await asyncio.sleep(_WAIT_SECONDS)

    def measured() -> T:
        with share.measured():
            return call(*arguments)

    share.charge(_HOP_SECONDS)
    return await asyncio.to_thread(measured)


class SingleFlightThread(Generic[T]):
    """Runs `read` once at a time, on a source's `share`: if it hangs, that costs one thread, not one per attempt."""

    def __init__(self, read: Callable[[], T], share: Share) -> None:
        self._read = read
        self._share = share
        self._pending: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """Return the result of a new read, or of the one under way. Cancelling leaves the read running."""
        if self._pending is None:
            self._pending = in_own_thread(self._measured, "single-flight")
        pending = self._pending
        try:
            return await asyncio.shield(pending)
        finally:
            if pending.done() and self._pending is pending:
                self._pending = None

    def _measured(self) -> T:
        with self._share.measured():
            return self._read()


class Worker:
    """Runs one blocking call at a time for a source, with a deadline."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._busy = False

    async def run(self, call: Callable[[], T], seconds: float, late: str) -> T:
        """Return the result of `call`. Raises SourceError for every error, with the sentence `late` for the deadline.

        Raises it at once while an earlier call, which exceeded its deadline, has not returned.
        """
        if self._busy:
            raise TimedOutError(f"a read of {self._name} that was given up still hangs in the kernel")
        self._busy = True

        def do() -> T:
            try:
                return call()
            finally:
                self._busy = False

        try:
            async with asyncio.timeout(seconds):
                return await in_own_thread(do, f"kvpressure-{self._name}")
        except TimeoutError:
            raise TimedOutError(late) from None
        except SourceError:
            raise
        except Exception as error:
            raise bug(error) from error
