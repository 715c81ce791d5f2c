"""PURE: which blocks were evicted and requested again, and how many more blocks would have kept them.

A block that is stored again after it was removed is a capacity miss. Pools that evict the least recently used include
each other (Mattson 1970): a list of what was removed, the ghost list, goes on where the pool ends, and a block's place
in it is how many more blocks would have kept it. So the hits of every larger pool are known, and none of smaller ones:
a hit is no event, so it is not known which of the blocks in the pool are old.

Blocks are sampled by a hash of their hash (SHARDS, Waldspurger 2015), at a rate that falls where memory would grow.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.model.kv_events import BOUNDS, KvEvents
from kvpressure.promtext.lines import Steps, in_one_go
from kvpressure.sources.kv_events.decode import Batch, Cleared, Removed, Stored, events
from kvpressure.sources.kv_events.memory import MAX_ENTRIES

LARGEST_POOL: Final = 8
"""Nothing is remembered of what a pool of so many times the size would not have kept."""
_ALL: Final = 1 << 24
_ENTRIES_A_RUN: Final = 16
_STEP_EVENTS: Final = 16
_STEP_BLOCKS: Final = 256
"""Blocks taken in at once: a part of a millisecond."""
_SAME_PROMPT_BATCHES: Final = 2
"""A long prompt is stored over steps that follow each other."""
_LEAST_POOL: Final = 64
_FEW: Final = 64

Hash = int | bytes


def _mixed(block: Hash, group: int) -> int:
    # Python's own: of bytes it is keyed anew in each process, so no publisher chooses what is sampled.
    return hash((block, group))


@dataclass(slots=True)
class _Run:
    """A prompt that is being stored, a step after the other.

    `started` are the evictions before its first block: what it evicts to make room for itself, a larger pool need not
    have kept. `taken` is how many of its blocks were in the list. `blocks` is how many more (of those sampled) would
    have kept all of it so far: none of it is found behind one that is not. `missed` are its tokens that were computed
    again.
    """

    started: int
    batch: int
    taken: int = 0
    blocks: int = 0
    missed: float = 0.0


class GhostList:
    """One rank's blocks. Times are unix seconds; `counts` is the caller's."""

    def __init__(self, now: float, *, entries: int = MAX_ENTRIES, mixed: Callable[[Hash, int], int] = _mixed) -> None:
        self._entries, self._mixed = entries, mixed
        self._threshold = _ALL
        self._since = now
        self._stored = self._evicted = 0
        self._forgotten = 0
        """Of what was evicted up to this one nothing is known."""
        self._longest: float | None = None
        """Blocks that the list was cut to, None where it never was."""
        self._ghosts: dict[int, int] = {}
        self._order: list[int] = []
        """The numbers of the evictions of those in `_ghosts`, oldest first."""
        self._here: set[int] = set()
        self._below: set[int] = set()
        self._runs: dict[int, _Run] = {}
        """By the last block that was stored of each."""
        self._batch = 0
        self._before = 0
        self._tokens = [0.0] * (len(BOUNDS) + 1)
        self._missed = self._missed_squares = 0.0
        self._misses = 0
        self._full_group: int | None = None

    def limit(self, entries: int) -> None:
        """Remember so many blocks at most from now on."""
        self._entries = entries
        self._bound()

    def take(self, batch: Batch, now: float, counts: Counter[str]) -> None:
        """Take in one batch, which came at `now`, and count its events by kind. Raises BadBatchError."""
        in_one_go(self.steps(batch, now, counts))

    def steps(self, batch: Batch, now: float, counts: Counter[str]) -> Steps[None]:
        """Do the same step by step. Where the rest of the steps is left out, `forget`: a part of a batch is nothing."""
        self.begin_batch()
        for taken, event in enumerate(events(batch), 1):
            if isinstance(event, Stored):
                counts["stored"] += 1
                if event.on_gpu:
                    yield from self._store(event.hashes, event.parent, event.block_tokens, event.group, full=event.full)
                else:
                    self.stored_below(event.hashes, event.group)
            elif isinstance(event, Removed):
                counts["removed"] += 1
                if event.on_gpu:
                    yield from self._remove(event.hashes, event.group)
                else:
                    self.removed_below(event.hashes, event.group)
            elif isinstance(event, Cleared):
                counts["cleared"] += 1
                self.forget(now, emptied=True)
            else:
                counts["unknown"] += 1
            if taken % _STEP_EVENTS == 0:
                yield

    def begin_batch(self) -> None:
        """Begin the events of another step."""
        self._before = self._evicted
        self._batch += 1

    def stored(self, hashes: Sequence[Hash], parent: Hash | None, block_tokens: int, group: int, *, full: bool) -> None:
        """Take in blocks that came into the pool, in the order of their prompt."""
        in_one_go(self._store(hashes, parent, block_tokens, group, full=full))

    def _store(
        self, hashes: Sequence[Hash], parent: Hash | None, block_tokens: int, group: int, *, full: bool
    ) -> Steps[None]:
        run = self._run(parent, group)
        if counts := self._counts(group, full=full):
            self._stored += len(hashes) * block_tokens
        keys = [key for block in hashes if (key := self._mixed(block, group)) % _ALL < self._threshold]
        newest = bisect_right(self._order, run.started) + run.taken
        numbers = []
        for count, key in enumerate(keys, 1):
            number = self._ghosts.pop(key, None)
            if number is not None:
                numbers.append(number)
                place = newest - bisect_left(self._order, number)
                run.blocks = max(run.blocks, place, 1)
            # What is still here is of no use behind a block that is not, and was computed again as well.
            again = number is not None or (run.blocks > 0 and key in self._here)
            if again and counts and key not in self._below:
                self._miss(run, block_tokens)
            self._here.add(key)
            if count % _STEP_BLOCKS == 0:
                yield
        self._take_out(numbers)
        run.taken += len(numbers)
        if hashes:
            self._runs[self._mixed(hashes[-1], group)] = run
            if len(self._runs) > self._entries // _ENTRIES_A_RUN:
                self._runs.clear()
        self._before = self._evicted
        self._bound()

    def _take_out(self, numbers: list[int]) -> None:
        if len(numbers) > _FEW:
            gone = set(numbers)
            self._order = [number for number in self._order if number not in gone]
            return
        for number in numbers:
            del self._order[bisect_left(self._order, number)]

    def _run(self, parent: Hash | None, group: int) -> _Run:
        """Return the prompt that is being stored, of which `parent` was the last block so far; else a new one."""
        run = None if parent is None else self._runs.pop(self._mixed(parent, group), None)
        if run is None or self._batch - run.batch > _SAME_PROMPT_BATCHES:  # another turn found what was stored then
            return _Run(self._before, self._batch)
        run.batch = self._batch
        return run

    def removed(self, hashes: Sequence[Hash], group: int) -> None:
        """Take in blocks that were evicted from the pool."""
        in_one_go(self._remove(hashes, group))

    def _remove(self, hashes: Sequence[Hash], group: int) -> Steps[None]:
        for place, block in enumerate(hashes, 1):
            if place % _STEP_BLOCKS == 0:
                yield
            self._evicted += 1
            key = self._mixed(block, group)
            if key % _ALL >= self._threshold:
                continue
            self._here.discard(key)
            before = self._ghosts.get(key)
            if before is not None:  # one of two copies was gone already
                self._take_out([before])
            self._ghosts[key] = self._evicted
            self._order.append(self._evicted)
        self._bound()

    def stored_below(self, hashes: Sequence[Hash], group: int) -> None:
        """Take in blocks that a tier below the pool keeps: loading these back is no computing."""
        keys = (self._mixed(block, group) for block in hashes)
        self._below.update(key for key in keys if key % _ALL < self._threshold)
        self._bound()

    def removed_below(self, hashes: Sequence[Hash], group: int) -> None:
        """Take in blocks that such a tier dropped."""
        self._below.difference_update(self._mixed(block, group) for block in hashes)

    def forget(self, now: float, *, emptied: bool = False) -> None:
        """Forget what was evicted: events are missing, or the pool was `emptied` by a reset or a restart."""
        self._ghosts.clear()
        self._order.clear()
        self._runs.clear()
        self._forgotten = self._before = self._evicted
        self._longest = None
        self._since = now
        if emptied:
            self._here.clear()
            self._below.clear()
            self._threshold = _ALL

    def report(self, t: float, rank: int, counts: Counter[str]) -> KvEvents:
        """Return what is known at `t`."""
        return KvEvents(
            t=t,
            since=self._since,
            rank=rank,
            stored_tokens=float(self._stored),
            evicted_blocks=self._evicted,
            missed_tokens=self._missed,
            missed_squares=self._missed_squares,
            missed_by_blocks=tuple(self._tokens),
            misses=self._misses,
            reach=int(min(self._evicted - self._forgotten, self._longest or math.inf)),
            sampled_ratio=self._threshold / _ALL,
            counts=dict(counts),
        )

    def _counts(self, group: int, *, full: bool) -> bool:
        """Whether tokens of this group of layers count; of several groups that have the same tokens one does."""
        if full and (self._full_group is None or group < self._full_group):
            self._full_group = group
        return group == (self._full_group or 0)

    def _miss(self, run: _Run, tokens: int) -> None:
        scale = _ALL / self._threshold
        scaled, blocks = tokens * scale, run.blocks * scale
        self._missed += scaled
        self._missed_squares += scaled * (2 * run.missed + scaled)
        run.missed += scaled
        self._misses += 1
        self._tokens[bisect_left(BOUNDS, blocks)] += scaled

    def _bound(self) -> None:
        """Drop what the largest pool would not have kept either; then sample fewer."""
        if len(self._ghosts) + len(self._here) + len(self._below) <= self._entries:
            return
        most = (LARGEST_POOL - 1) * max(_LEAST_POOL, len(self._here))
        if len(self._order) > most + self._entries // 8:
            oldest = self._order[-most]
            self._ghosts = {key: number for key, number in self._ghosts.items() if number >= oldest}
            self._longest = most * (_ALL / self._threshold)
        while len(self._ghosts) + len(self._here) + len(self._below) > self._entries // 2 and self._threshold > 1:
            self._threshold //= 2
            self._ghosts = {key: number for key, number in self._ghosts.items() if key % _ALL < self._threshold}
            self._here = {key for key in self._here if key % _ALL < self._threshold}
            self._below = {key for key in self._below if key % _ALL < self._threshold}
        self._order = sorted(self._ghosts.values())
        if self._threshold <= 1:
            self.forget(self._since, emptied=True)
