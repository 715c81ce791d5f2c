"""The ghost list, against pools that are played through."""

import random
import tracemalloc
from collections import Counter, OrderedDict

import pytest

from kvpressure.model.kv_events import KvEvents
from kvpressure.signals.kv_events import kept_by
from kvpressure.sources.kv_events.ghosts import GhostList

SIZE = 16


def mixed(one: int, group: int) -> int:
    """The same in every process."""
    return hash((one, group, "seed".__len__()))


class Pool:
    """A least recently used pool whose requests are chains of blocks, as vLLM's: with KV events."""

    def __init__(self, blocks: int, ghosts: GhostList | None = None) -> None:
        self.blocks, self.ghosts = blocks, ghosts
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.requested = self.found = 0

    def request(self, t: float, chain: list[int]) -> None:
        self.requested += len(chain)
        hits = 0
        while hits < len(chain) and chain[hits] in self.cached:
            hits += 1
        self.found += hits
        kept = set(chain)
        for one in chain[:hits]:
            self.cached.move_to_end(one)
        new = chain[hits:]
        gone = []
        while len(self.cached) + sum(one not in self.cached for one in new) > self.blocks:
            gone.append(next(one for one in self.cached if one not in kept or one in new))
            del self.cached[gone[-1]]
        # The end of a chain is freed first, so that its beginning survives longest.
        for one in reversed(chain):
            self.cached[one] = None
            self.cached.move_to_end(one)
        if self.ghosts is not None:
            self.ghosts.begin_batch()
            for one in gone:
                self.ghosts.removed([one], 0)
            if new:
                parent = chain[hits - 1] if hits else None
                self.ghosts.stored(new, parent, SIZE, 0, full=True)


def played(blocks: int, *, ghosts: GhostList | None = None, sessions: int = 40, turns: int = 3000) -> Pool:
    """Sessions that grow turn by turn and take turns at random."""
    rng, pool = random.Random(1), Pool(blocks, ghosts)
    chains: list[list[int]] = [[] for _ in range(sessions)]
    names = iter(range(10**9))
    for t in range(turns):
        chosen = rng.randrange(sessions)
        if len(chains[chosen]) > 60:
            chains[chosen] = []
        chains[chosen] = [*chains[chosen], *(next(names) for _ in range(4))]
        pool.request(float(t), chains[chosen])
    return pool


def report(ghosts: GhostList) -> KvEvents:
    return ghosts.report(0.0, 0, Counter())


def test_what_is_stored_again_after_it_was_removed_is_a_capacity_miss():
    ghosts = GhostList(0.0)
    ghosts.stored([1, 2], None, SIZE, 0, full=True)
    ghosts.removed([2], 0)
    ghosts.removed([1], 0)
    ghosts.begin_batch()
    ghosts.stored([1, 3], None, SIZE, 0, full=True)
    found = report(ghosts)
    assert (found.missed_tokens, found.misses, found.evicted_blocks) == (SIZE, 1, 2)
    assert kept_by(found.missed_by_blocks, 1) == SIZE


@pytest.mark.parametrize("factor", [1.1, 1.25, 1.5, 2.0, 3.0])
def test_hits_of_larger_pools_are_those_that_such_a_pool_has(factor):
    blocks = 800
    ghosts = GhostList(0.0, mixed=mixed)
    small, large = played(blocks, ghosts=ghosts), played(round(blocks * factor))
    estimated = small.found + kept_by(report(ghosts).missed_by_blocks, (factor - 1.0) * blocks) / SIZE
    assert estimated / small.requested == pytest.approx(large.found / large.requested, abs=0.015)


def test_misses_are_all_that_an_unlimited_pool_would_have_found():
    ghosts = GhostList(0.0, mixed=mixed)
    small, unlimited = played(600, ghosts=ghosts), played(10**9)
    assert report(ghosts).missed_tokens / SIZE == pytest.approx(unlimited.found - small.found, rel=0.02)


def test_a_sample_tells_the_same_within_its_error():
    ghosts, few = GhostList(0.0, mixed=mixed), GhostList(0.0, entries=1200, mixed=mixed)
    played(800, ghosts=ghosts)
    played(800, ghosts=few)
    exact, sampled = report(ghosts), report(few)
    assert exact.sampled_ratio == 1.0
    assert sampled.sampled_ratio <= 0.5
    assert sampled.evicted_blocks == exact.evicted_blocks
    assert sampled.missed_tokens == pytest.approx(exact.missed_tokens, rel=0.1)
    for blocks in (400, 800):
        both = (kept_by(one.missed_by_blocks, blocks) for one in (exact, sampled))
        assert next(both) == pytest.approx(next(both), rel=0.15)


@pytest.mark.exhaustive
def test_memory_is_bounded_at_any_number_of_blocks():
    tracemalloc.start()
    try:
        ghosts = GhostList(0.0)
        for step in range(2000):
            names = [(step * 512 + i).to_bytes(32, "big") for i in range(512)]
            ghosts.begin_batch()
            ghosts.stored(names, None, SIZE, 0, full=True)
            ghosts.stored_below(names, 0)
            if step % 2:
                ghosts.removed(names, 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20
    assert report(ghosts).evicted_blocks == 512_000


def test_what_a_publisher_chooses_to_be_sampled_is_forgotten_rather_than_kept():
    ghosts = GhostList(0.0, entries=1000, mixed=lambda one, _: one << 24)
    ghosts.removed(list(range(5000)), 0)
    assert report(ghosts).reach < 5000
    assert report(ghosts).sampled_ratio == 1.0


def test_after_a_gap_nothing_is_known_of_what_was_evicted_before():
    ghosts = GhostList(0.0)
    ghosts.stored([1, 2], None, SIZE, 0, full=True)
    ghosts.removed([1, 2], 0)
    ghosts.forget(3.0)
    ghosts.stored([1, 2], None, SIZE, 0, full=True)
    found = report(ghosts)
    assert (found.missed_tokens, found.since, found.reach) == (0.0, 3.0, 0)


def test_a_reset_of_the_cache_is_no_eviction():
    ghosts = GhostList(0.0)
    ghosts.stored([1, 2], None, SIZE, 0, full=True)
    ghosts.forget(2.0, emptied=True)
    ghosts.stored([1, 2], None, SIZE, 0, full=True)
    assert report(ghosts).missed_tokens == 0.0


def test_what_is_loaded_from_a_tier_below_is_not_computed_again():
    ghosts = GhostList(0.0)
    ghosts.stored_below([1], 0)
    ghosts.removed([1, 2], 0)
    ghosts.stored([1], None, SIZE, 0, full=True)
    ghosts.removed([1], 0)
    ghosts.removed_below([1], 0)
    assert report(ghosts).missed_tokens == 0.0
    ghosts.stored([1], None, SIZE, 0, full=True)
    assert report(ghosts).missed_tokens == SIZE


def test_of_several_groups_of_layers_tokens_count_once():
    ghosts = GhostList(0.0)
    for group, full in ((0, False), (1, True), (2, True)):
        ghosts.stored([1], None, SIZE, group, full=full)
    for group in range(3):
        ghosts.removed([1], group)
    for group, full in ((0, False), (1, True), (2, True)):
        ghosts.stored([1], None, SIZE, group, full=full)
    assert report(ghosts).missed_tokens == SIZE


def test_all_tokens_that_are_stored_count_once_whatever_is_sampled():
    ghosts = GhostList(0.0, entries=64)
    for one in range(1_000):
        ghosts.stored([one, -one - 1], None, SIZE, 0, full=True)
        ghosts.stored([one, -one - 1], None, SIZE, 1, full=False)
    found = report(ghosts)
    assert found.sampled_ratio < 1.0
    assert found.stored_tokens == 2_000 * SIZE


def test_a_long_prompt_does_not_count_what_it_evicts_itself():
    ghosts = GhostList(0.0)
    ghosts.removed([1, 2, 3, 4], 0)
    for begin, parent in ((1, None), (3, 2)):
        ghosts.begin_batch()
        ghosts.removed(range(100 * begin, 100 * begin + 50), 0)  # to make room for itself
        ghosts.stored([begin, begin + 1], parent, SIZE, 0, full=True)
    assert kept_by(report(ghosts).missed_by_blocks, 4) == 4 * SIZE


@pytest.mark.parametrize(("second_parent", "squares"), [(2, (4 * SIZE) ** 2), (None, 2 * (2 * SIZE) ** 2)])
def test_what_each_prompt_missed_counts_over_all_of_its_steps(second_parent: int | None, squares: float):
    ghosts = GhostList(0.0)
    ghosts.removed([1, 2, 3, 4], 0)
    for begin, parent in ((1, None), (3, second_parent)):
        ghosts.begin_batch()
        ghosts.stored([begin, begin + 1], parent, SIZE, 0, full=True)
    assert report(ghosts).missed_squares == squares


def test_a_block_behind_one_that_is_gone_is_computed_again_too():
    ghosts = GhostList(0.0)
    ghosts.stored([1, 2], None, SIZE, 0, full=True)
    ghosts.removed([1], 0)
    ghosts.begin_batch()
    ghosts.stored([1, 2], None, SIZE, 0, full=True)
    assert report(ghosts).missed_tokens == 2 * SIZE


def test_reports_of_what_was_found_are_no_misses():
    ghosts = GhostList(0.0)
    ghosts.stored([1, 2], None, SIZE, 0, full=True)
    ghosts.stored([1, 2], None, SIZE, 0, full=True)
    assert report(ghosts).missed_tokens == 0.0
