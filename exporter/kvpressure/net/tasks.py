"""Tasks of the event loop, ended for sure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

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
                task.exception()  # else the loop would tell of it a second time, when the task is forgotten
