"""Orderly ends of commands that have started other programs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterator
from typing import Any, Final, TypeVar

ENDING: Final = (signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


def run_to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` does; SIGTERM and a lost terminal end it as Ctrl-C does. Raises KeyboardInterrupt for each."""
    try:
        return asyncio.run(work)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Cancel this task at SIGTERM and SIGHUP, so that every kubectl that runs for it is ended."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101 - within a coroutine
    handled = []
    with contextlib.suppress(ValueError, RuntimeError):  # another thread than the main one gets no signals
        for number in ENDING:
            loop.add_signal_handler(number, task.cancel)
            handled.append(number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
