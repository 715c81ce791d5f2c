"""The work allowed for reading one pod, counted instead of timed: a pod costs the same on every machine."""

from __future__ import annotations

from typing import Final

STEP: Final = 24
"""Cost of a step (a word, a quote, a variable, an entry of a list), in characters."""

WORK: Final = 1 << 18
"""For one pod, in characters read or made: some milliseconds and a megabyte, many times what manifests contain."""

MAX_ENTRIES: Final = WORK // STEP + 1
"""A list of as many entries always exceeds the budget."""

NESTING: Final = 4
"""Depth of shells in shells, or of scripts that run scripts, that are read."""


class BudgetExceededError(Exception):
    """There is more than may be read. What was read before is true, but the rest may contradict it."""


class Budget:
    """What is left for one pod: one object, passed to everything that reads a part of it.

    Every step is charged before it is taken, so that its result is never larger than what is left.
    """

    __slots__ = ("left",)

    def __init__(self, work: int = WORK) -> None:
        self.left = work

    def take(self, characters: int = 0, steps: int = 1) -> None:
        """Charge for reading or making characters. Raises BudgetExceededError where it is exceeded, then always."""
        self.left -= characters + STEP * steps
        if self.left < 0:
            raise BudgetExceededError
