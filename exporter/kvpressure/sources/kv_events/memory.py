"""The memory that all feeds of KV events share: what they remember of blocks, and messages that are being received."""

from __future__ import annotations

import threading
from typing import Final

MAX_ENTRIES: Final = 1 << 16
"""Blocks that one feed remembers at most; with all that belongs to them `ENTRY_BYTES` each."""
ENTRY_BYTES: Final = 200
ALL_BYTES: Final = 64 << 20
_BLOCKS_BYTES: Final = ALL_BYTES // 2
_LONG_MESSAGES_BYTES: Final = ALL_BYTES // 4
"""Of messages that do not fit into what each feed has of its own; the last quarter is that, and a batch in decoding."""


class Memory:
    """What the feeds in force may use together. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._feeds = 0
        self._long_messages = 0

    def joined(self) -> None:
        """Count one feed more."""
        with self._lock:
            self._feeds += 1

    def left(self) -> None:
        """Count one feed less."""
        with self._lock:
            self._feeds -= 1

    @property
    def blocks(self) -> int:
        """How many blocks each feed may remember."""
        return min(MAX_ENTRIES, _BLOCKS_BYTES // ENTRY_BYTES // max(1, self._feeds))

    def reserve(self, count: int) -> bool:
        """Reserve so many bytes for a long message; False, and nothing, where others have them."""
        with self._lock:
            if self._long_messages + count > _LONG_MESSAGES_BYTES:
                return False
            self._long_messages += count
            return True

    def release(self, count: int) -> None:
        """Give so many bytes back."""
        with self._lock:
            self._long_messages -= count
