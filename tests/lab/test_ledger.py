"""The books of the prefix cache, on a block pool that is written as vLLM's is: least recently freed first."""

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab.clock import Clock
from tests.lab.ledger import KINDS, NEVER, Cached, Ledger

SIZE = 4
GROUP = bytes(4)


class Pool:
    """As `vllm/v1/core/block_pool.py`, as far as the ledger listens to it."""

    def __init__(self, blocks: int) -> None:
        self.num_gpu_blocks = blocks
        made = (SimpleNamespace(block_id=n, ref_cnt=0, block_hash=None, is_null=False) for n in range(blocks))
        self.free = {block.block_id: block for block in made}
        self.cached: dict[bytes, Any] = {}
        self.cached_block_hash_to_block = SimpleNamespace(get_one_block=self.cached.get)

    def get_num_free_blocks(self) -> int:
        return len(self.free)

    def get_new_blocks(self, count: int) -> list[Any]:
        taken = [self.free.pop(number) for number in list(itertools.islice(self.free, count))]
        for block in taken:
            self._maybe_evict_cached_block(block)
            block.ref_cnt += 1
        return taken

    def _maybe_evict_cached_block(self, block: Any) -> bool:
        if block.block_hash is None or self.cached.get(block.block_hash) is not block:
            block.block_hash = None
            return False
        del self.cached[block.block_hash]
        block.block_hash = None
        return True

    def touch(self, blocks: Sequence[Any]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                del self.free[block.block_id]
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Any) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free[block.block_id] = block

    def cache_full_blocks(self, request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int) -> None:
        for index in range(num_cached_blocks, num_full_blocks):
            key = request.block_hashes[index] + GROUP
            blocks[index].block_hash = key
            self.cached.setdefault(key, blocks[index])

    def reset_prefix_cache(self) -> bool:
        if any(block.ref_cnt for block in self.cached.values()):
            return False
        self.cached.clear()
        return True


class Manager:
    """As `KVCacheManager`: a request's blocks."""

    def __init__(self, pool: Pool) -> None:
        self.block_pool = pool
        self.held: dict[str, list[Any]] = {}

    def found(self, request: Any) -> list[Any]:
        blocks = []
        for hashed in request.block_hashes[: (request.num_tokens - 1) // SIZE]:
            block = self.block_pool.cached.get(hashed + GROUP)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def allocate_slots(self, request: Any, tokens: int, num_new_computed_tokens: int = 0, found: Any = ()) -> Any:
        new = -(-request.num_tokens // SIZE) - len(found)
        if new > self.block_pool.get_num_free_blocks() - sum(block.ref_cnt == 0 for block in found):
            return None
        self.block_pool.touch(found)
        blocks = [*found, *self.block_pool.get_new_blocks(new)]
        self.block_pool.cache_full_blocks(
            request=request,
            blocks=blocks,
            num_cached_blocks=len(found),
            num_full_blocks=(num_new_computed_tokens + tokens) // SIZE,
        )
        self.held[request.request_id] = blocks
        return blocks

    def free(self, request: Any) -> None:
        self.block_pool.free_blocks(reversed(self.held.pop(request.request_id)))


class Engine:
    """One request after the other; each takes a second."""

    def __init__(self, blocks: int, forgotten: Any = ()) -> None:
        self.clock, self.manager = Clock(), Manager(Pool(blocks))
        self.ledger = Ledger(SimpleNamespace(kv_cache_manager=self.manager), SIZE, self.clock, forgotten)
        self.requests: dict[str, Any] = {}

    def admit(self, name: str, tokens: Sequence[int], *, sibling: int = 0) -> Any:
        self.ledger.expect(name, sibling)
        request = SimpleNamespace(
            request_id=name,
            status=SimpleNamespace(name="WAITING"),
            num_tokens=len(tokens),
            num_computed_tokens=0,
            block_hashes=hashes(tokens),
        )
        found = self.manager.found(request)
        cached = len(found) * SIZE
        if self.manager.allocate_slots(request, len(tokens) - cached, cached, found) is None:
            return None
        request.num_computed_tokens = cached
        self.requests[name] = request
        return request

    def compute(self, name: str, tokens: int) -> None:
        self.requests[name].num_computed_tokens += tokens
        self.ledger.step({name: tokens}, self.requests)

    def serve(self, name: str, tokens: Sequence[int], *, sibling: int = 0) -> Cached:
        request = self.admit(name, tokens, sibling=sibling)
        self.compute(name, request.num_tokens - request.num_computed_tokens)
        self.clock.now += 1
        self.manager.free(request)
        return self.ledger.take(1)


def hashes(tokens: Sequence[int]) -> list[bytes]:
    made, before = [], b""
    for index in range(len(tokens) // SIZE):
        before = hashlib.sha256(before + repr(tokens[index * SIZE : (index + 1) * SIZE]).encode()).digest()
        made.append(before)
    return made


def text(number: int, length: int = 40) -> list[int]:
    return [number] * length


def test_what_is_new_is_cold_and_what_is_there_is_found_but_for_the_last_block() -> None:
    engine = Engine(100)
    first, again = engine.serve("a", text(1)), engine.serve("b", text(1))
    assert (first.count["asked"], first.count["cold"], first.count["found"]) == (40, 40, 0)
    assert (again.count["asked"], again.count["found"], again.count["cold"]) == (40, 36, 4)
    assert again.gaps == [0.0] * 9
    assert (first.count["stored"], first.count["generated"], first.under_way) == (10, 1, 0)


def test_what_was_evicted_is_computed_again_and_says_how_long_it_had_lain() -> None:
    engine = Engine(15)
    engine.serve("a", text(1))
    engine.clock.now += 10
    other = engine.serve("b", text(2))
    assert (other.count["evicted"], other.ages) == (5, [10.0] * 5)
    engine.clock.now += 5
    back = engine.serve("c", text(1))
    # The end of a prompt is evicted first: half of it is still there.
    assert (back.count["found"], back.count["again"], back.count["cold"]) == (20, 16, 4)
    assert back.late == [16.0] * 4
    assert back.count["missed"] == 4
    assert sum(back.kept_by.values()) == 4
    assert NEVER not in back.kept_by


def test_a_reset_and_a_restart_forget_and_are_no_evictions() -> None:
    engine = Engine(100)
    engine.serve("a", text(1))
    assert engine.manager.block_pool.reset_prefix_cache()
    after = engine.serve("b", text(1))
    assert (after.count["reset"], after.count["again"], after.count["cold"]) == (36, 0, 4)
    restarted = Engine(100, engine.ledger.known)
    assert restarted.serve("c", text(1)).count["reset"] == 36


def test_a_reset_that_is_refused_forgets_nothing() -> None:
    engine = Engine(100)
    engine.serve("a", text(1))
    engine.admit("b", text(1))
    assert not engine.manager.block_pool.reset_prefix_cache()
    assert engine.ledger.known == set(hashes(text(1)))
    assert engine.serve("c", text(1)).count["reset"] == 0


def test_what_a_sibling_has_is_no_eviction() -> None:
    engine = Engine(100)
    count = engine.serve("a", text(1), sibling=30).count
    assert (count["sibling"], count["cold"], count["again"]) == (28, 12, 0)


def test_a_request_that_is_not_admitted_is_not_booked() -> None:
    engine = Engine(8)
    assert engine.admit("a", text(1)) is None
    assert engine.ledger.take(0).count["asked"] == 0


def test_what_is_computed_piece_by_piece_is_under_way_and_dropped_with_its_request() -> None:
    engine = Engine(100)
    request = engine.admit("a", text(1))
    engine.compute("a", 10)
    news = engine.ledger.take(0)
    assert (news.count["asked"], news.count["computed"], news.under_way) == (40, 10, 30)
    engine.manager.free(request)
    news = engine.ledger.take(0)
    assert (news.count["dropped"], news.under_way) == (30, 0)
    engine.admit("b", text(2))
    news = engine.ledger.end()
    assert (news.count["dropped"], news.under_way) == (40, 0)


@pytest.mark.parametrize("blocks", [30, 60, 120, 100_000])
def test_the_books_balance_and_the_run_without_limit_says_the_same(blocks: int) -> None:
    def conversation(engine: Engine) -> list[Cached]:
        rng = random.Random(7)
        said = {client: text(client, 24) for client in range(8)}
        news = []
        for number in range(300):
            client = rng.randrange(8)
            tokens = [*said[client], 1000 + number, *[1] * rng.randrange(12)]
            said[client] = tokens if len(tokens) < 100 else text(2000 + number, 24)
            news.append(engine.serve(f"r{number}", tokens))
        return news

    engine, unlimited = Engine(blocks), Engine(100_000)
    given, free = conversation(engine), conversation(unlimited)
    evicted = 0
    for news, without in zip(given, free, strict=True):
        count = news.count
        assert count["asked"] == count["found"] + count["computed"]
        assert count["computed"] == sum(count[kind] for kind in KINDS)
        assert count["missed"] <= evicted + count["evicted"]
        evicted += count["evicted"]
        # The difference in computed tokens is the capacity misses, request by request.
        assert count["computed"] - without.count["computed"] == count["again"]
        assert count["again"] == count["missed"] * SIZE
    assert not engine.ledger.contradictions
    assert bool(evicted) is (blocks < 1000)


def test_a_while_is_added_to_another_and_recorded() -> None:
    total = Cached()
    total.add(Cached(Counter(asked=8, found=4, evicted=2), ages=[1.0, 3.0], under_way=4))
    total.add(Cached(Counter(computed=4), ages=[5.0], under_way=0))
    record = total.record()
    assert (record["asked"], record["found"], record["computed"], record["evicted"]) == (8, 4, 4, 2)
    assert record["age"] == [3.0, 1.4, 3.0, 4.6]
    assert "gap_found" not in record
    assert total.under_way == 0
