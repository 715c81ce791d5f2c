"""PURE: the events of one batch into the ghost list."""

from __future__ import annotations

from collections import Counter

from kvpressure.sources.kv_events.decode import Batch, Cleared, Removed, Stored, events
from kvpressure.sources.kv_events.ghosts import GhostList


def take(ghosts: GhostList, batch: Batch, now: float, counts: Counter[str]) -> None:
    """Take in one batch, which came at `now` (unix seconds), and count its events by kind. Raises BadBatchError."""
    ghosts.begin_batch()
    for event in events(batch):
        if isinstance(event, Stored):
            counts["stored"] += 1
            if event.on_gpu:
                ghosts.stored(event.hashes, event.parent, event.block_tokens, event.group, full=event.full)
            else:
                ghosts.stored_below(event.hashes, event.group)
        elif isinstance(event, Removed):
            counts["removed"] += 1
            if event.on_gpu:
                ghosts.removed(event.hashes, event.group)
            else:
                ghosts.removed_below(event.hashes, event.group)
        elif isinstance(event, Cleared):
            counts["cleared"] += 1
            ghosts.forget(now, emptied=True)
        else:
            counts["unknown"] += 1
