"""Work that can be done a step at a time: a generator that yields between two steps and returns the result."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]

STEP_LINES: Final = 256
"""Lines of a page read in one step: a few milliseconds at worst."""


def in_one_go(steps: Steps[T]) -> T:
    """The result, after all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
