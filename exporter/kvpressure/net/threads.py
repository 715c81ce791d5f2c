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

from kvpressure.model.errors import InternalError, SourceError
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
    """Runs `read` once at a time: if it hangs, that costs one thread, not one per attempt.

    It is charged to a source's `share`, unless it does that itself.
    """

    def __init__(self, read: Callable[[], T], share: Share | None = None) -> None:
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

    async def ended(self) -> None:
        """Wait for the end of a read under way, whatever comes of it."""
        if self._pending is not None:
            await asyncio.wait((self._pending,))

    def _measured(self) -> T:
        if self._share is None:
            return self._read()
        with self._share.measured():
            return self._read()
