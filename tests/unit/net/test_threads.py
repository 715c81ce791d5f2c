from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from functools import partial

import pytest

from kvpressure.model.errors import SourceError, TooLargeError
from kvpressure.net.budget import Budget
from kvpressure.net.threads import SingleFlightThread, in_own_thread


async def test_a_read_that_hangs_holds_one_thread_and_nobody_waits_for_another():
    release, started = threading.Event(), []

    def read() -> str:
        started.append(1)
        release.wait(20)
        return "done"

    aside = SingleFlightThread(read, Budget().share("x"))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await aside.get()
    assert len(started) == 1
    release.set()
    assert await aside.get() == "done"
    assert await aside.get() == "done"
    assert len(started) == 2


async def test_what_a_read_raises_is_raised_and_the_next_read_begins_anew():
    outcomes = [OSError("gone"), None]

    def read() -> None:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    aside = SingleFlightThread(read, Budget().share("x"))
    with pytest.raises(OSError, match="gone"):
        await aside.get()
    await aside.get()


async def test_what_a_call_that_fails_has_held_is_free_at_once():
    class Held:
        """Stands for a page of megabytes."""

    def failing(held: Held) -> None:
        raise TooLargeError(str(held))

    held = Held()
    known = weakref.ref(held)
    gc.disable()
    try:
        reason = ""
        try:
            await in_own_thread(partial(failing, held), "x")
        except SourceError as error:  # not by pytest, which would hold it
            reason = error.reason
        del held
        await asyncio.sleep(0.05)
        assert reason == "too_large"
        assert known() is None
    finally:
        gc.enable()
