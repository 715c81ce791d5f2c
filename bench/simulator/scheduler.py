"""One rank's scheduler: vLLM V1's rules, a step at a time, with runs of equal decode steps taken at once.

Rules (vLLM `v1/core/sched/scheduler.py`): running requests first, then waiting ones first come first served; a
running request that finds no block drops the last running one (recompute preemption); a step that preempted admits
nothing; a waiting request is admitted when its whole prompt fits the free blocks (`scheduler_reserve_full_isl`)
or, without that, when its first chunk does; prompts are computed in chunks within `max_num_batched_tokens`.

The block pool keeps free blocks in eviction order, some of them still holding cached tokens. It is modelled on vLLM
V1's `BlockPool`: block 0 is reserved; freed blocks go to the tail of an LRU queue, a request's last block first, so
that a cached prefix is eaten from its end; taking a cached block back costs nothing but its place.

The decoding part of a batch is kept in aggregate, so that a step costs the same for 2 sequences or 200. A decoding
request grows by one token per step, so *when* it needs its next block and *when* it ends is known the moment it joins:
`phase[r]` counts the requests that need a block at steps s with s mod block_size = r.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from bench.simulator.config import EngineConfig, StepTime, StepWork
from bench.simulator.stats import Activity, RankStats, Request


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


class DecodingSet:
    """Requests decoding in one rank; `step` counts the rank's completed steps."""

    def __init__(self, block_size: int, api_servers: int) -> None:
        self.block_size = block_size
        self.step = 0
        self.size = 0
        self.context_tokens = 0
        self.by_api = [0] * api_servers
        self._phase = [0] * block_size
        self._ends: list[tuple[int, int, int, Request]] = []

    def add(self, request: Request) -> None:
        """A request whose prompt is computed starts to decode at the next step."""
        request.decoding, request.step_joined = True, self.step
        self._count(request, 1)
        end = self.step + request.output - request.generated
        heapq.heappush(self._ends, (end, request.id, request.epoch, request))

    def remove(self, request: Request) -> None:
        """Take a request out and bring its `computed` and `generated` up to date."""
        grown = self.step - request.step_joined
        self._count(request, -1)
        request.computed += grown
        request.generated += grown
        request.decoding = False
        request.epoch += 1

    def advance(self, steps: int) -> None:
        """That many steps are done."""
        self.step += steps
        self.context_tokens += steps * self.size

    def blocks_needed(self, ahead: int = 0) -> int:
        """Blocks that the set must take for the step `ahead` of the next one."""
        return self._phase[(self.step + ahead) % self.block_size]

    def needs_block(self, request: Request) -> bool:
        """Whether this request needs a block for the next step."""
        return (self.step - request.step_joined + request.computed) % self.block_size == 0

    def computed(self, request: Request) -> int:
        """KV tokens of a request, decoding or not."""
        return request.computed + (self.step - request.step_joined if request.decoding else 0)

    def steps_until_end(self) -> int:
        """Steps until the first request of the set ends (a large number when none will)."""
        while self._ends and self._ends[0][3].epoch != self._ends[0][2]:
            heapq.heappop(self._ends)
        return self._ends[0][0] - self.step if self._ends else 1 << 30

    def pop_ended(self) -> list[Request]:
        """Requests whose last token is out; they are removed."""
        ended = []
        while self.steps_until_end() <= 0:
            request = heapq.heappop(self._ends)[3]
            self.remove(request)
            ended.append(request)
        return ended

    def _count(self, request: Request, sign: int) -> None:
        need = (request.step_joined - request.computed) % self.block_size
        self._phase[need] += sign
        self.size += sign
        self.by_api[request.api] += sign
        self.context_tokens += sign * self.computed(request)


_LONGEST_RUN = 64
"""Steps taken at once; the step time is that of the first, so a run must stay short against the context's growth."""


@dataclass(slots=True)
class _Flight:
    """Steps under way: `steps` equal ones from `start`, each lasting `time.seconds`; chunks are of the first."""

    start: float
    time: StepTime
    steps: int
    chunks: list[tuple[Request, int]]

    @property
    def end(self) -> float:
        return self.start + self.steps * self.time.seconds


class Rank:
    """One data-parallel rank: its queue, its batch, its blocks. Times are virtual seconds; `end` is inf when idle."""

    def __init__(self, config: EngineConfig, rng: random.Random) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks)
        self.stats = RankStats(config.max_model_len)
        self.activity = Activity()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._inbox: list[Request] = []
        self.paused = False
        self.peers: list[Rank] = []
        self._decoding = DecodingSet(config.block_size, config.api_servers)
        self._flight: _Flight | None = None
        self._rng = rng

    @property
    def queue_score(self) -> int:
        """What vLLM's load balancer compares: 4 x waiting + running."""
        return 4 * (len(self.waiting) + len(self._inbox)) + len(self.running)

    @property
    def busy(self) -> bool:
        """Whether a step is under way."""
        return self._flight is not None

    @property
    def end(self) -> float:
        """When the steps under way are done."""
        return self._flight.end if self._flight else math.inf

    def enqueue(self, request: Request, t: float) -> None:
        """A request reaches the engine, which is settled up to `t`; the scheduler sees it between two steps."""
        request.queued = t
        if not self.waiting and self._flight:
            self._flight.steps = 1  # it may be admitted after the step under way
        self._inbox.append(request)
        if not self._flight:
            self._schedule(t)

    def settle(self, t: float) -> list[Request]:
        """Complete every step that ended by `t`; returns the requests that ended, in order."""
        ended: list[Request] = []
        while self._flight and self._flight.start + self._flight.time.seconds <= t + 1e-9:
            ended += self._complete(self._flight, t)
        if self._flight:
            self.activity.record(self._flight.start, min(t, self.end), self._flight.time)
        return ended

    def abort_all(self, t: float) -> list[Request]:
        """Every client hangs up: requests leave with finished_reason `abort`; the steps under way are dropped."""
        ended = self.settle(t)
        self._drop_flight()
        gone = [*self.running, *self.waiting, *self._inbox]
        while self.running:
            self._release(self.running.pop(), cache=False)
        self.waiting.clear()
        self._inbox.clear()
        for request in gone:
            request.reason = "abort"
            self.stats.finished(request, t)
        self._publish()
        return [*ended, *gone]

    def set_paused(self, paused: bool, t: float) -> list[Request]:
        """Stop or resume scheduling: a stuck engine accepts requests and does nothing with them."""
        ended = self.settle(t)
        self.paused = paused
        if not paused and not self._flight:
            self._schedule(t)
        return ended

    def publish_queue(self) -> None:
        """Show the queue of an engine that does not step."""
        if self.paused:
            self._publish()

    # -- completing steps

    def _complete(self, flight: _Flight, t: float) -> list[Request]:
        done = min(flight.steps, max(1, int((t - flight.start) / flight.time.seconds + 1e-6)))
        now = flight.start + done * flight.time.seconds
        self.activity.record(flight.start, now, flight.time)
        self._count_tokens(flight, done)
        ended = self._decoding.pop_ended()
        ended += self._prefilled(flight.chunks, now)
        for request in ended:
            self._end(request, now)
        if done == flight.steps:
            self._publish()
            self._schedule(now)
        else:
            self.pool.take(self._decoding.blocks_needed())
            flight.start, flight.steps, flight.chunks = now, flight.steps - done, []
            self._publish()
        return ended

    def _count_tokens(self, flight: _Flight, done: int) -> None:
        """Counters and histograms of `done` steps; with several API processes each counts the steps it saw."""
        decoding, stats = self._decoding, self.stats
        outputs = list(decoding.by_api)
        prompts = [0] * len(outputs)
        for request, chunk in flight.chunks:
            if request.computed + chunk >= request.prefill_target:
                outputs[request.api] += 1
                prompts[request.api] += request.prompt if request.first_token is None else 0
        for output, prompt in zip(outputs, prompts, strict=True):
            if output:
                stats.histograms["iteration"].observe(output + prompt, done)
        if decoding.size:
            stats.histograms["inter_token"].observe(flight.time.seconds, done * decoding.size)
        stats.counters["generation_tokens"] += done * decoding.size
        self.pool.take(sum(decoding.blocks_needed(ahead) for ahead in range(1, done)))
        decoding.advance(done)
        stats.counters["steps"] += done

    def _prefilled(self, chunks: list[tuple[Request, int]], now: float) -> list[Request]:
        """Chunks are computed; a finished prompt emits a token. Returns requests that wanted only that one."""
        ended = []
        for request, chunk in chunks:
            request.computed += chunk
            if request.computed < request.prefill_target:
                continue
            self._emit_prefill_token(request, now)
            if request.generated >= request.output:
                ended.append(request)
            else:
                self._decoding.add(request)
        return ended

    def _emit_prefill_token(self, request: Request, now: float) -> None:
        if request.first_token is None:
            request.first_token = now
            self.stats.first_token(request, now)
        else:
            self.stats.histograms["inter_token"].observe(now - request.last_token)
        request.generated += 1
        self.stats.counters["generation_tokens"] += 1

    def _end(self, request: Request, now: float) -> None:
        self.running.remove(request)
        self._release(request, cache=False)
        request.last_token = now
        self.stats.finished(request, now)

    def _drop_flight(self) -> None:
        """Forget the step under way; the blocks it took are then held by its requests, as if it had ended."""
        if self._flight is None:
            return
        for request, chunk in self._flight.chunks:
            request.computed += chunk
        self._decoding.advance(1)
        self._flight = None

    def _publish(self) -> None:
        self.stats.running = len(self.running)
        self.stats.waiting = len(self.waiting)
        self.stats.usage_ratio = self.pool.usage_ratio

    # -- scheduling steps

    def _schedule(self, now: float) -> None:
        self._flight = None
        self.waiting.extend(self._inbox)
        self._inbox.clear()
        if self.paused or not (self.running or self.waiting):
            return
        chunks: list[tuple[Request, int]] = []
        preempted = self._allocate_decoding(now)
        preempted |= self._continue_prefills(chunks, now)
        if not preempted:
            self._admit(chunks, now)
        self._flight = _Flight(now, self._step_time(chunks), 1, chunks)
        if not chunks and not preempted:
            self._flight.steps = self._run_length()
        self._count_blocked_lookups(preempted, self._flight.steps)

    def _allocate_decoding(self, now: float) -> bool:
        """Blocks for the next token of every decoding request; true when one had to be preempted for them."""
        if self._decoding.blocks_needed() <= self.pool.free:
            self.pool.take(self._decoding.blocks_needed())
            return False
        index = 0
        while index < len(self.running):
            request = self.running[index]
            index += 1
            if not (request.decoding and self._decoding.needs_block(request)):
                continue
            if self._make_room(request, 1, now):
                self.pool.take(1)
        return True

    def _make_room(self, request: Request, blocks: int, now: float) -> bool:
        """Preempt from the end until `blocks` are free; false when the request itself had to go."""
        while self.pool.free < blocks:
            last = self.running.pop()
            self._preempt(last, now)
            if last is request:
                return False
        return True

    def _preempt(self, request: Request, now: float) -> None:
        if request.decoding:
            request.last_token = now
        self._release(request, cache=True)
        request.preemptions += 1
        request.computed = 0
        self.waiting.appendleft(request)
        self.stats.counters["preemptions"] += 1

    def _continue_prefills(self, chunks: list[tuple[Request, int]], now: float) -> bool:
        """Chunks for prompts begun in an earlier step; there is at most one, and it runs last."""
        preempted = False
        for request in [request for request in self.running[-2:] if not request.decoding]:
            chunk = min(request.prefill_target - request.computed, self._budget(chunks))
            blocks = self._blocks(request, request.computed + chunk) - self._blocks(request, request.computed)
            if request not in self.running or chunk <= 0:
                continue
            if self.pool.free < blocks:
                preempted = True
            if self._make_room(request, blocks, now):
                self.pool.take(blocks)
                chunks.append((request, chunk))
        return preempted

    def _admit(self, chunks: list[tuple[Request, int]], now: float) -> None:
        while self.waiting and len(self.running) < self.config.max_num_seqs and self._budget(chunks) > 0:
            request = self.waiting[0]
            hit = self._hit_tokens(request)
            chunk = min(request.tokens - hit, self._budget(chunks))
            covered = request.tokens if self.config.reserve_full_prompt else hit + chunk
            if self._blocks_to_take(request, covered) > self.pool.free:
                return
            self.waiting.popleft()
            self._reference(request, hit, hit + chunk)
            self.running.append(request)
            if request.admitted is None:
                request.admitted, request.hit_tokens = now, hit
                self.stats.admitted(request)
            chunks.append((request, chunk))

    def _budget(self, chunks: list[tuple[Request, int]]) -> int:
        return self.config.max_num_batched_tokens - self._decoding.size - sum(chunk for _, chunk in chunks)

    def _step_time(self, chunks: list[tuple[Request, int]]) -> StepTime:
        work = StepWork(
            self._decoding.size,
            self._decoding.context_tokens,
            sum(chunk for _, chunk in chunks),
            sum(chunk * (request.computed + chunk / 2) for request, chunk in chunks),
        )
        time = self.config.cost.time(work)
        busy_peers = sum(peer.busy for peer in self.peers if peer is not self)
        stretch = self._rng.lognormvariate(0.0, self.config.step_jitter) * (
            1 + self.config.rank_contention * busy_peers
        )
        return StepTime(time.seconds * stretch, time.busy, time.compute, time.memory)

    def _run_length(self) -> int:
        """Equal steps until a request ends or the blocks run short."""
        steps = min(self._decoding.steps_until_end(), _LONGEST_RUN)
        needed = 0
        for ahead in range(1, steps):
            needed += self._decoding.blocks_needed(ahead)
            if needed > self.pool.free:
                return ahead
        return steps

    def _count_blocked_lookups(self, preempted: bool, steps: int) -> None:
        """In 0.12 the prefix lookup of a request that then does not fit is counted in every step again."""
        blocked = self.waiting and not preempted and len(self.running) < self.config.max_num_seqs
        if blocked and self.config.version == "0.12.0":
            self.stats.counters["prefix_queries"] += self.waiting[0].tokens * steps

    # -- blocks of a request

    def _blocks(self, request: Request, tokens: int) -> int:
        """Blocks of its own that a request holds for `tokens` tokens."""
        return max(0, -(-tokens // self.config.block_size) - request.shared_blocks)

    def _hit_tokens(self, request: Request) -> int:
        """Tokens found in the prefix cache: the shared prefix, or what is left of a preempted request's own blocks."""
        shared = request.prefix_tokens // self.config.block_size
        hit = min(shared, self.pool.shared_hit(request.prefix_key)) if shared else 0
        if hit == shared:
            hit += self.pool.cached(request.id)
        return min(hit, (request.tokens - 1) // self.config.block_size) * self.config.block_size

    def _blocks_to_take(self, request: Request, tokens: int) -> int:
        """Free blocks that admitting it would use: all but those another request holds for it already."""
        prefix = request.prefix_tokens // self.config.block_size
        live = self.pool.shared_live(request.prefix_key) if prefix else 0
        return max(prefix, -(-tokens // self.config.block_size)) - min(live, prefix)

    def _reference(self, request: Request, hit: int, tokens: int) -> None:
        """Take the blocks for `tokens` tokens, of which `hit` are cached already."""
        request.prefill_target, request.computed = request.tokens, hit
        request.shared_blocks = request.prefix_tokens // self.config.block_size
        if request.shared_blocks:
            self.pool.join(request.prefix_key, request.shared_blocks)
        reclaimed = self.pool.reclaim(request.id)
        own = self._blocks(request, tokens)
        if reclaimed > own:
            self.pool.put(reclaimed - own)
        self.pool.take(max(0, own - reclaimed))

    def _release(self, request: Request, *, cache: bool) -> None:
        """Give its blocks back; those of a preempted request stay findable, the half-filled last one does not."""
        if request.decoding:
            self._decoding.remove(request)
        held = self._blocks(request, request.computed)
        full = min(held, max(0, request.computed // self.config.block_size - request.shared_blocks))
        self.pool.put(held - full if cache else held)
        if cache:
            self.pool.put(full, request.id)
        if request.shared_blocks:
            self.pool.leave(request.prefix_key)
            request.shared_blocks = 0
