"""What an engine's KV events have shown so far, as the signals take it: counts of blocks and tokens, never tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from kvpressure.model.record import record

BOUNDS: Final = tuple(2.0 ** (step / 8) for step in range(193))
"""Upper bounds of `KvEvents.missed_by_blocks`, in blocks: a tenth apart, up to more blocks than any pool has."""


@record
class KvEvents:
    """One rank's events, read since the source began; every count is cumulative.

    `since` is when the ghost list was last forgotten (unix seconds): of what was evicted before, nothing is known.
    `stored_tokens` are the tokens of blocks that came into the GPU's pool, of prompts and answers; `evicted_blocks` are
    blocks removed from it, `missed_tokens` the tokens of blocks stored again after they had been removed: capacity
    misses, counted at `sampled_ratio` of all blocks and scaled up. `missed_by_blocks` are the same tokens by how many
    more blocks would have kept them (at most as many as that one of `BOUNDS`). `missed_squares` is the sum of the
    squares of what each prompt missed: its root is how uncertain a rate of so many tokens is.
    `misses` are the blocks that this was counted on. `reach` is how many more blocks can be known at all.
    `counts` has what was read, by what became of it.
    """

    t: float
    since: float
    rank: int = 0
    stored_tokens: float = 0.0
    evicted_blocks: int = 0
    missed_tokens: float = 0.0
    missed_squares: float = 0.0
    missed_by_blocks: tuple[float, ...] = ()
    misses: int = 0
    reach: int = 0
    sampled_ratio: float = 1.0
    counts: Mapping[str, int] = field(default_factory=dict)


def of_rank(reports: tuple[KvEvents, ...], engine: str, *, alone: bool) -> KvEvents | None:
    """Return the events of the engine (a rank's number) on a target's page; `alone`: the page has no other."""
    if alone and len(reports) == 1:
        return reports[0]
    return next((events for events in reports if str(events.rank) == engine), None)
