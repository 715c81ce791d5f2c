"""How much of pages may be remembered, so that no page can make everybody else pay for its length."""

from __future__ import annotations

import threading
from typing import Final
from weakref import WeakKeyDictionary

OWN_BYTES: Final = 512 << 10
"""What every target may take to remember its pages: enough for two engines, in full and filtered by name."""

SHARED_BYTES: Final = 24 << 20
"""What all targets together may take beyond that: for 200 engines, in whatever servers they are."""


class Memory:
    """What targets share of the memory for remembered pages. Safe to use from several threads.

    Bytes are given back when their holder is forgotten.
    """

    def __init__(self, most_bytes: int = SHARED_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def allows(self, holder: object, held_bytes: int) -> bool:
        """Whether `holder` may take so many bytes in all; if not, what it may take stays as it was."""
        beyond = max(0, held_bytes - OWN_BYTES)
        with self._lock:
            mine = self._held.get(holder, 0)
            if beyond > mine and sum(self._held.values()) - mine + beyond > self._most_bytes:
                return False
            if beyond:
                self._held[holder] = beyond
            elif mine:
                del self._held[holder]
            return True
