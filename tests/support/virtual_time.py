"""Runs coroutines, real sockets included, on time that stands still while things happen and jumps while none do.

A server that takes eight seconds costs a test two milliseconds, and how busy the machine is changes nothing.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar
from unittest import mock

P = ParamSpec("P")
T = TypeVar("T")

WALL_SECONDS = 1.8e9
ON_THE_WAY_SECONDS = 0.002
"""Bytes on loopback, or a thread's result, may be under way while nothing is ready: time waits this long for them."""


class _Selector(selectors.DefaultSelector):
    """Never sleeps for a timer: what it would have slept is added to `now`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        while not ready and (timeout is None or timeout > 0):
            ready = super().select(ON_THE_WAY_SECONDS)
            if not ready and timeout is not None and not self.threads:
                self.now += timeout
                break
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time, in seconds from an arbitrary start."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return self._awaited(super().run_in_executor(executor, func, *args))

    def wrap_future(self, work: Future[T]) -> asyncio.Future[T]:
        """`asyncio.wrap_future` of a pool's work, for which time waits as for that of `run_in_executor`."""
        return self._awaited(asyncio.futures.wrap_future(work, loop=self))

    def _awaited(self, future: asyncio.Future[T]) -> asyncio.Future[T]:
        self._virtual.threads += 1
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: object) -> None:
        self._virtual.threads -= 1


class LoopClock:
    """The running loop's time as the sources' clock."""

    def wall(self) -> float:
        return WALL_SECONDS + self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep_until(self, monotonic_seconds: float) -> None:
        await asyncio.sleep(max(0.0, monotonic_seconds - self.monotonic()))


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a virtual loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        with mock.patch.object(asyncio, "wrap_future", loop.wrap_future):
            return runner.run(main)


def on_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a coroutine function a plain test that runs to its end on a virtual loop."""

    @functools.wraps(test)
    def as_a_plain_test(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return as_a_plain_test
