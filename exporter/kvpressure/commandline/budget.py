"""How much may be done to read one pod, counted and not timed: a pod costs the same on every machine."""

from __future__ import annotations

from typing import Final

STEP: Final = 24
"""What a step (a word, a quote, a variable, an entry of a list) costs, in characters: it is slower than they are."""

WORK: Final = 1 << 18
"""For one pod, in characters read or made: some milliseconds and a megabyte, and many times what people write."""

MAX_ENTRIES: Final = WORK // STEP + 1
"""No list of as many entries can be read within it."""

NESTING: Final = 4
"""Shells in shells; that many scripts are read into each other."""


class BudgetExceededError(Exception):
    """There is more than may be read. What was read before is true, but may be contradicted by what was not."""


class Budget:
    """What is left for one pod: made once, handed down to whatever reads a part of it, and never made anew below.

    Everything is paid for before it is done, so that what one step makes of another is never more than what is left.
    """

    __slots__ = ("left",)

    def __init__(self, work: int = WORK) -> None:
        self.left = work

    def take(self, characters: int = 0, steps: int = 1) -> None:
        """Pay for reading or making so many characters in so many steps.

        Raises BudgetExceededError, and from then on always.
        """
        self.left -= characters + STEP * steps
        if self.left < 0:
            raise BudgetExceededError
