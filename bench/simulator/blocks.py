"""The KV block pool: free blocks in eviction order, some of them still holding cached tokens.

Modelled on vLLM V1's `BlockPool`: block 0 is reserved; freed blocks go to the tail of an LRU queue, a request's last
block first, so that a cached prefix is eaten from its end; taking a cached block back costs nothing but its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class _Extent:
    """Adjacent blocks of the LRU queue with one owner (None: nothing worth finding again)."""

    owner: Hashable | None
    blocks: int


@dataclass(slots=True)
class _Shared:
    """A prefix several requests hold together: its blocks count once."""

    holders: int
    blocks: int


class BlockPool:
    """Blocks of one rank. `usable` excludes the reserved block; idle cached blocks count as free."""

    def __init__(self, num_blocks: int) -> None:
        self.usable = num_blocks - 1
        self.free = self.usable
        self._queue: deque[_Extent] = deque([_Extent(None, self.usable)])
        self._cached: dict[Hashable, _Extent] = {}
        self._shared: dict[Hashable, _Shared] = {}

    @property
    def usage_ratio(self) -> float:
        """Share of usable blocks that some request references, 0..1."""
        return (self.usable - self.free) / self.usable

    def take(self, blocks: int) -> None:
        """Take blocks from the head of the queue, evicting what they cached. ValueError when fewer are free."""
        if blocks > self.free:
            raise ValueError(f"{blocks} blocks asked for, {self.free} free: check the fit before taking")
        self.free -= blocks
        while blocks:
            head = self._queue[0]
            eaten = min(blocks, head.blocks)
            head.blocks -= eaten
            blocks -= eaten
            if not head.blocks:
                self._drop_head()

    def put(self, blocks: int, owner: Hashable | None = None) -> None:
        """Give blocks back; with an owner they can be reclaimed until they are evicted."""
        if not blocks:
            return
        self.free += blocks
        extent = _Extent(owner, blocks)
        if owner is not None:
            self._cached[owner] = extent
        elif self._queue and self._queue[-1].owner is None:
            self._queue[-1].blocks += blocks
            return
        self._queue.append(extent)

    def cached(self, owner: Hashable) -> int:
        """How many of an owner's blocks are idle and not yet evicted."""
        extent = self._cached.get(owner)
        return extent.blocks if extent else 0

    def reclaim(self, owner: Hashable) -> int:
        """Reference an owner's idle cached blocks again; returns how many there were."""
        extent = self._cached.pop(owner, None)
        if extent is None:
            return 0
        blocks, extent.blocks, extent.owner = extent.blocks, 0, None
        self.free -= blocks
        return blocks

    def shared_hit(self, key: Hashable) -> int:
        """Blocks of a shared prefix that need no computing: live ones, or idle cached ones."""
        shared = self._shared.get(key)
        return shared.blocks if shared else self.cached(key)

    def shared_live(self, key: Hashable) -> int:
        """Blocks of a shared prefix that a request holds now, so that joining takes no free block."""
        shared = self._shared.get(key)
        return shared.blocks if shared else 0

    def join(self, key: Hashable, blocks: int) -> None:
        """One more request holds the prefix of `blocks` blocks; missing ones are taken."""
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _Shared(0, self.reclaim(key))
        self.take(max(0, blocks - shared.blocks))
        shared.blocks = max(blocks, shared.blocks)
        shared.holders += 1

    def leave(self, key: Hashable) -> None:
        """One request fewer holds the prefix; the last one leaves it idle and cached."""
        shared = self._shared[key]
        shared.holders -= 1
        if not shared.holders:
            del self._shared[key]
            self.put(shared.blocks, key)

    def _drop_head(self) -> None:
        extent = self._queue.popleft()
        if extent.owner is not None and self._cached.get(extent.owner) is extent:
            del self._cached[extent.owner]
