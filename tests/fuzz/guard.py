"""Ends an input that would never end, and measures the CPU that the others take."""

import signal
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from types import FrameType

HANG_SECONDS = 10
"""CPU seconds of one input after which it counts as one that does not end."""

_AGAIN = 3


class HangError(BaseException):
    """One input took `HANG_SECONDS` of CPU; not an Exception, so that no handler under test takes it for its own."""


class SlowError(AssertionError):
    """One input takes more CPU than one may, each time it is measured."""


@contextmanager
def hangs_end(inputs: Callable[[], int]) -> Iterator[None]:
    """Raise HangError in whatever runs while `inputs()`, the number of inputs begun, stands still for too long."""
    seen = [-1, 0]

    def tick(_signal: int, _frame: FrameType | None) -> None:
        now = inputs()
        seen[1] = seen[1] + 1 if seen[0] == now else 0
        seen[0] = now
        if seen[1] >= HANG_SECONDS:
            seen[1] = 0
            raise HangError(f"no end after {HANG_SECONDS} CPU seconds")

    before = signal.signal(signal.SIGVTALRM, tick)
    signal.setitimer(signal.ITIMER_VIRTUAL, 1.0, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def check_not_slow(check: Callable[[bytes], Hashable], data: bytes, most_seconds: float) -> None:
    """Raise SlowError if `data` is slow each time: a first time may have paid for a garbage collection."""
    best = min(_cpu_seconds(check, data) for _ in range(_AGAIN))
    if best > most_seconds:
        raise SlowError(f"{len(data)} bytes take {best:.2f} s of CPU")


def _cpu_seconds(check: Callable[[bytes], Hashable], data: bytes) -> float:
    start = time.process_time()
    check(data)
    return time.process_time() - start
