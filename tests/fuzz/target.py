"""What a fuzz target is, and how its oracle says that a promise was broken."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from random import Random

LONGEST_BYTES = 4096


class BrokenPromiseError(AssertionError):
    """The code under test gave an answer that it must not give; `what` is the same for all such answers."""

    def __init__(self, what: str, detail: object = "") -> None:
        super().__init__(f"{what}: {detail!r:.400}" if detail != "" else what)
        self.what = what


def expect(holds: object, what: str, detail: object = "") -> None:
    """Raise BrokenPromiseError unless `holds`."""
    if not holds:
        raise BrokenPromiseError(what, detail)


@dataclass(frozen=True, slots=True)
class Target:
    """Code that reads foreign bytes.

    `check` gives an input to the code and raises for an answer that must not be; what it returns is the kind of the
    answer, by which new behaviour is recognised, so it has few values. It is pure: equal bytes, equal answer. `make`
    draws an input from a grammar, `seeds` are real ones, and mutations of both use `words`. No input is longer than
    `longest_bytes`. Each input gets `slow_seconds` of CPU.
    """

    about: str
    make: Callable[[Random], bytes]
    check: Callable[[bytes], Hashable]
    seeds: Callable[[], Iterable[bytes]] = tuple
    words: tuple[bytes, ...] = ()
    longest_bytes: int = LONGEST_BYTES
    slow_seconds: float = 0.25
