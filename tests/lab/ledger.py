"""What the prefix cache did: every prompt token booked as found or computed, and why it had to be computed.

vLLM's block pool is listened to, nothing of it is changed. When a request is admitted, its tokens fall into ranges one
after the other, because the hash of a block holds all tokens before it:

    found | again: stored before and evicted | reset: forgotten by a reset | sibling: another replica has it | cold

Blocks are known by their hash; a block's last use ends when the last request that holds it ends.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.lab.clock import Clock

GROUP_BYTES: Final = 4
"""At the end of a key of the pool: of which group of layers the block is."""
KINDS: Final = ("again", "reset", "sibling", "cold")
"""Why a prompt token is computed."""
TOKENS: Final = ("asked", "found", "computed", "again", "reset", "sibling", "dropped", "generated")
BLOCKS: Final = ("stored", "evicted", "reused", "missed")
LARGER: Final = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
"""Pools, in multiples of this one, of which it is counted which capacity misses they would have been spared."""
NEVER: Final = "more"


@dataclass(slots=True)
class Cached:
    """What the prefix cache did for a while: counts of tokens and blocks, and seconds for each of some blocks.

    `ages`: from a block's last use to its eviction. `gaps`: from its last use to the next, of blocks found; `late` of
    blocks that were evicted in between, `kept_by` those blocks by the smallest pool that would have kept them.
    """

    count: Counter[str] = field(default_factory=Counter)
    ages: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    kept_by: Counter[str] = field(default_factory=Counter)
    under_way: int | None = None

    def add(self, other: Cached) -> None:
        """What happened later in the same while."""
        self.count.update(other.count)
        self.ages += other.ages
        self.gaps += other.gaps
        self.late += other.late
        self.kept_by.update(other.kept_by)
        self.under_way = other.under_way

    def record(self) -> dict[str, Any]:
        """For a line of a recording."""
        spread = {"age": self.ages, "gap_found": self.gaps, "gap_missed": self.late}
        return {
            **{name: self.count[name] for name in (*TOKENS, *BLOCKS)},
            **{name: _quantiles(values) for name, values in spread.items() if values},
            **({"kept_by": dict(self.kept_by)} if self.kept_by else {}),
        }


@dataclass(slots=True)
class _Entry:
    """A request's tokens that are not computed yet. `ends`: where each of KINDS ends; the last is all of them."""

    done: int
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Ghost:
    """A block that was evicted: the end of its last use, and how many blocks had been evicted before it."""

    used: float
    number: int


class Ledger:
    """The books of one engine. `forgotten`: hashes of blocks that the same server had before it was restarted."""

    def __init__(self, scheduler: Any, block_size: int, clock: Clock, forgotten: Iterable[bytes] = ()) -> None:
        self._block_size, self._clock = block_size, clock
        self._pool = scheduler.kv_cache_manager.block_pool
        self._stored: set[bytes] = set()
        self._forgotten = set(forgotten)
        self._ghosts: dict[bytes, _Ghost] = {}
        self._evicted = 0
        self._used: dict[int, float] = {}
        self._entries: dict[str, _Entry] = {}
        self._siblings: dict[str, int] = {}
        self._news = Cached()
        self.contradictions: list[str] = []
        """Blocks that were here, are not found and were never evicted: there should be none."""
        self._listen(scheduler.kv_cache_manager)
        self._listen_to_pool()

    @property
    def free_tokens(self) -> int:
        """Tokens that fit into blocks which nobody holds; what is cached in them will be evicted for that."""
        return int(self._pool.get_num_free_blocks()) * self._block_size

    @property
    def known(self) -> set[bytes]:
        """Hashes of all blocks there have ever been."""
        return self._stored | self._forgotten

    def expect(self, name: str, sibling: int) -> None:
        """A request comes, of which a sibling has computed the first `sibling` tokens."""
        if sibling:
            self._siblings[name] = sibling

    def step(self, scheduled: Mapping[str, int], requests: Mapping[str, Any]) -> None:
        """The next step computes these numbers of tokens; the scheduler has already moved its requests on."""
        for name in scheduled:
            entry = self._entries.get(name)
            if entry is None:
                continue
            end = min(requests[name].num_computed_tokens, entry.ends[-1])
            for kind, tokens in _split(entry, end):
                self._news.count[kind] += tokens
                self._news.count["computed"] += tokens
            entry.done = max(entry.done, end)
            if entry.done == entry.ends[-1]:
                del self._entries[name]

    def take(self, generated: int) -> Cached:
        """What has happened since the last time, with the tokens generated meanwhile."""
        news, self._news = self._news, Cached()
        news.count["generated"] += generated
        news.under_way = sum(entry.ends[-1] - entry.done for entry in self._entries.values())
        return news

    def end(self) -> Cached:
        """The engine dies: what it was computing is lost."""
        for name in list(self._entries):
            self._drop(name)
        return self.take(0)

    def _drop(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._news.count["dropped"] += entry.ends[-1] - entry.done

    # requests

    def _listen(self, manager: Any) -> None:
        allocate, free = manager.allocate_slots, manager.free

        def allocating(request: Any, *args: Any, **named: Any) -> Any:
            if request.status.name == "RUNNING":
                return allocate(request, *args, **named)
            found = named.get("num_new_computed_tokens", args[1] if len(args) > 1 else 0)
            entry, missed = self._ranges(request, found)
            blocks = allocate(request, *args, **named)
            if blocks is not None:
                self._admitted(request, found, entry, missed)
            return blocks

        def freeing(request: Any) -> Any:
            self._drop(request.request_id)
            return free(request)

        manager.allocate_slots, manager.free = allocating, freeing

    def _ranges(self, request: Any, found: int) -> tuple[_Entry, list[_Ghost | None]]:
        """Its tokens by kind, and of each block that was here and is not found when it was evicted."""
        begin, asked = request.num_computed_tokens + found, request.num_tokens
        hashes, size = request.block_hashes, self._block_size
        # The last token is always computed, so that there is something to sample from.
        most = min(len(hashes), (asked - 1) // size)
        known = _run(hashes, begin // size, most, self._stored)
        forgotten = _run(hashes, known, most, self._stored, self._forgotten)
        sibling = min(self._siblings.get(request.request_id, 0) // size, most)
        ends: list[int] = []
        for end in (known * size, forgotten * size, sibling * size, asked):
            ends.append(max(end, ends[-1] if ends else begin))
        ghosts = [self._ghosts.get(hashes[index]) for index in range(begin // size, known)]
        return _Entry(begin, tuple(ends)), ghosts

    def _admitted(self, request: Any, found: int, entry: _Entry, missed: Sequence[_Ghost | None]) -> None:
        count, now, blocks = self._news.count, self._clock.now, self._pool.num_gpu_blocks
        count.update(asked=entry.ends[-1] - entry.done + found, found=found, missed=len(missed))
        if missed and missed[0] is None:
            self.contradictions.append(f"{request.request_id}: a block is gone that was not evicted")
        for ghost in missed:
            if ghost is not None:  # else it is there, behind one that is not
                self._news.late.append(now - ghost.used)
                self._news.kept_by[_pool_that_keeps(self._evicted - ghost.number, blocks)] += 1
        self._entries[request.request_id] = entry

    # blocks

    def _listen_to_pool(self) -> None:
        pool, now = self._pool, lambda: self._clock.now
        evict, touch, free, store = (
            pool._maybe_evict_cached_block,
            pool.touch,
            pool.free_blocks,
            pool.cache_full_blocks,
        )
        reset = pool.reset_prefix_cache

        def evicting(block: Any) -> Any:
            hashed = block.block_hash
            gone = evict(block)
            if gone:
                used = self._used.get(block.block_id, now())
                self._news.count["evicted"] += 1
                self._news.ages.append(now() - used)
                if pool.cached_block_hash_to_block.get_one_block(hashed) is None:
                    self._ghosts[hashed[:-GROUP_BYTES]] = _Ghost(used, self._evicted)
                self._evicted += 1
            return gone

        def touching(blocks: Any) -> Any:
            idle = [block for block in _flat(blocks) if block.ref_cnt == 0 and not block.is_null]
            self._news.gaps += [now() - self._used.get(block.block_id, now()) for block in idle]
            self._news.count["reused"] += len(idle)
            return touch(blocks)

        def freeing(ordered_blocks: Iterable[Any]) -> Any:
            blocks = list(ordered_blocks)
            done = free(blocks)
            self._used.update((block.block_id, now()) for block in blocks if block.ref_cnt == 0)
            return done

        def storing(request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, **named: Any) -> Any:
            done = store(request, blocks, num_cached_blocks, num_full_blocks, **named)
            for index in range(num_cached_blocks, num_full_blocks):
                hashed = request.block_hashes[index]
                self._stored.add(hashed)
                self._ghosts.pop(hashed, None)
            self._news.count["stored"] += max(0, num_full_blocks - num_cached_blocks)
            return done

        def resetting() -> Any:
            done = reset()
            if done:
                self._forgotten |= self._stored
                self._stored.clear()
                self._ghosts.clear()
            return done

        pool._maybe_evict_cached_block, pool.touch, pool.free_blocks = evicting, touching, freeing
        pool.cache_full_blocks, pool.reset_prefix_cache = storing, resetting


def _flat(blocks: Iterable[Any]) -> Iterator[Any]:
    """Blocks, which 0.12 hands over in a sequence for each group."""
    for item in blocks:
        if isinstance(item, Sequence):
            yield from item
        else:
            yield item


def _run(hashes: Sequence[bytes], begin: int, end: int, *among: set[bytes]) -> int:
    """Where the run of blocks ends that begins at `begin` and is among those."""
    while begin < end and any(hashes[begin] in some for some in among):
        begin += 1
    return begin


def _split(entry: _Entry, end: int) -> Iterator[tuple[str, int]]:
    """Tokens by kind from where the entry is to `end`."""
    at = entry.done
    for kind, until in zip(KINDS, entry.ends, strict=True):
        if at < min(until, end):
            yield kind, min(until, end) - at
            at = min(until, end)


def _pool_that_keeps(evictions: int, blocks: int) -> str:
    """The smallest of LARGER with which a block would be there after so many evictions since its own."""
    return next((f"{factor:g}" for factor in LARGER if evictions <= (factor - 1) * blocks), NEVER)


def _quantiles(values: Sequence[float]) -> list[float]:
    """Mean, and 10, 50 and 90 % of them."""
    if len(values) == 1:
        return [round(values[0], 3)] * 4
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return [round(value, 3) for value in (statistics.fmean(values), cuts[0], cuts[4], cuts[8])]
