"""PURE: how much of telling lines one read may look at: every character costs, and a pod writes what it likes."""

from __future__ import annotations

from typing import Final

MAX_LINES: Final = 2000
"""Ten times that would keep the thread, and the interpreter, busy for a second."""
LONG_CHARACTERS: Final = 400
"""Longer lines are mostly requests; no server tells of its own death in one."""
MAX_IN_LONG: Final = 64 * 1024
MAX_IN_SHORT: Final = 128 * 1024
"""Characters of long and of short lines, apart, so that long ones hide no short one. Each costs up to 2 us."""


class Allowance:
    """What may still be looked at of one read, `shares` of which it is worth."""

    def __init__(self, shares: int = 1) -> None:
        self._lines, self._long, self._short = shares * MAX_LINES, shares * MAX_IN_LONG, shares * MAX_IN_SHORT

    def covers(self, characters: int) -> bool:
        """Whether a line of so many characters may be looked at; it then counts."""
        if self._lines <= 0:
            return False
        if characters > LONG_CHARACTERS:
            self._long -= characters
            return self._long >= 0
        self._short -= characters
        return self._short >= 0

    def told(self) -> None:
        """Count a line that told something."""
        self._lines -= 1
