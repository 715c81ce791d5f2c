"""Discrete-event simulation of an engine's scheduler: minutes of virtual time in milliseconds of CPU.

Running requests are scheduled first. One that finds no free block preempts the last one scheduled, which is
recomputed; a step with a preemption admits nothing. Waiting requests are admitted in order, when the whole prompt fits
and the batch is below `max_num_seqs`. Prompts are computed in chunks of a step's token budget. Consecutive steps in
which every sequence only decodes one token are taken at once. Of sessions, what is not running stays in the free part
of the pool until that is needed, the least recently used first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Final

from kvpressure.simulation.clients import Clients
from kvpressure.simulation.contexts import Contexts
from kvpressure.simulation.outcome import Outcome, Tally
from kvpressure.simulation.queue_order import Request, queue_of
from kvpressure.simulation.server import Demand, Server

WARM_UP_TURNS: Final = 2.0
"""Answers per running request that are not counted at the start, when all clients begin at once."""
WARM_UP_ANSWERS: Final = 20
ANSWERS: Final = 240
"""Least number of counted answers; with many clients twice their number."""
SESSION_WARM_UP_TURNS: Final = 6.0
SESSION_ANSWERS: Final = 1200
"""Near the cliff hits swing from minute to minute."""
SESSION_ANSWERS_EACH: Final = 16
MAX_SIMULATED_SECONDS: Final = 7200.0
"""Limit of virtual time, however slow the server."""
OPEN_WARM_UP_RATIO: Final = 0.1
MAX_TURNS: Final = 40_000
"""Limit of loop turns of one run: about a tenth of a second of CPU."""


def simulate(
    server: Server,
    demand: Demand,
    limit_seconds: float = math.inf,
    *,
    pools: Sequence[float] = (),
    answers: int | None = None,
) -> Outcome | None:
    """Return what clients get in steady state; None where no request is ever answered.

    `pools`: sizes of caches, in tokens, whose hits are counted beside those of the pool; of sessions only. `answers`:
    how many of sessions are counted at least.
    """
    return _Run(server, demand, limit_seconds, pools).outcome(answers or SESSION_ANSWERS)


class _Run:
    def __init__(self, server: Server, demand: Demand, limit: float, pools: Sequence[float]) -> None:
        self.server, self.demand = server, demand
        self.clients = Clients(server, demand)
        self.now = 0.0
        self.step = 0
        self.contexts = None if demand.sessions is None else Contexts(server, pools)
        # The common beginning of all sessions is always in use.
        self.used = 0.0 if demand.sessions is None or not server.reuses else float(demand.sessions.shared)
        self.waiting = queue_of(server)
        self.running: dict[Request, None] = {}
        self.prefilling: list[Request] = []
        self.ends: list[tuple[int, int, Request]] = []
        self.decoding = 0
        self.context = 0.0
        """Tokens of those that decode, which each step reads."""
        self.allocated = 0.0
        self.number = 0
        self.tally = Tally(limit)

    @property
    def free(self) -> float:
        return self.server.pool_tokens - self.used

    def _release(self, request: Request) -> None:
        grown = self.step - request.since if request.decoding else 0
        if request.decoding:
            self.context -= request.tokens + grown
        self.used -= self.server.holds(request.tokens + grown - request.shape.shared)
        if self.contexts is not None:
            self.contexts.keep(request, grown)

    def _use(self, tokens: float) -> None:
        """Take free tokens into use; what the cache kept in them is evicted."""
        self.used += tokens
        self.allocated += tokens
        if self.contexts is not None:
            self.contexts.shrink(self.free, self.used)

    def _preempt(self) -> None:
        request = self.waiting.victim(self.running)
        del self.running[request]
        self._release(request)
        if request.decoding:
            grown = self.step - request.since
            request.tokens += grown
            request.generated += grown
            request.decoding = False
            self.decoding -= 1
        else:
            self.prefilling.remove(request)
        request.turn += 1
        request.preempted_at_allocated_tokens = self.allocated
        request.free_tokens_at_preemption = max(0.0, self.free - self.server.holds(request.tokens))
        self.waiting.push_back(request)
        self.tally.preempted += self.tally.counting

    def _left(self, request: Request) -> int:
        """Return the tokens of a request that have to be computed; of sessions, loaded ones count by their time."""
        if self.contexts is None:
            return request.tokens - self._cached(request)
        return self.contexts.take(request, counting=self.tally.counting)

    def _cached(self, request: Request) -> int:
        """Return cached tokens: the common prefix, and own blocks that were not reallocated since its preemption."""
        shared = request.shape.shared
        if request.preempted_at_allocated_tokens >= 0 and self.server.kv_offload:
            return request.tokens - 1
        if request.preempted_at_allocated_tokens < 0 or not self.server.reuses:
            return shared
        lost = max(0.0, self.allocated - request.preempted_at_allocated_tokens - request.free_tokens_at_preemption)
        return max(shared, int(min(request.tokens - 1, max(0.0, request.tokens - lost))))

    # steps

    def _admit(self, budget: float) -> float:
        server = self.server
        while self.waiting and len(self.running) < server.max_num_seqs and budget > 0:
            request = self.waiting.first()
            needed = self.server.holds(request.tokens - request.shape.shared)
            if needed > self.free - server.watermark_tokens and self.running:
                break
            self.waiting.take()
            request.left = self._left(request)
            self._use(needed)
            self.running[request] = None
            self.prefilling.append(request)
            budget -= request.left
        return budget

    def _turn(self) -> None:
        """One step, or as many as nothing happens in."""
        server = self.server
        preempted = False
        while self.decoding and self.free < self.decoding and len(self.running) > 1:
            self._preempt()
            preempted = True
        budget = server.step_tokens - self.decoding
        if not preempted:
            self._admit(budget - sum(one.left for one in self.prefilling))
        if self.prefilling:
            self._prefill(budget)
            return
        if not self.decoding:
            return
        steps = self.ends[0][0] - self.step
        while self.ends[0][2].turn != self.ends[0][1] or not self.ends[0][2].decoding:
            heapq.heappop(self.ends)
            steps = self.ends[0][0] - self.step
        room = int(self.free / self.decoding)
        steps = max(1, min(steps, room))
        seconds = server.steps.of(self.decoding, 0.0, self.context)
        blocked = self.waiting and not preempted
        if not blocked and self.clients.next_seconds < math.inf:
            until = self.clients.next_seconds - self.now
            steps = max(1, min(steps, math.ceil(until / seconds)))
        if preempted:
            steps = 1
        # Contexts grow by a token a step.
        seconds = server.steps.of(self.decoding, 0.0, self.context + self.decoding * (steps - 1) / 2)
        self._advance(steps, seconds * steps)

    def _prefill(self, budget: float) -> None:
        computed, preceding, done = 0.0, 0.0, []
        for request in self.prefilling:
            chunk = min(request.left, max(0.0, budget - computed))
            computed += chunk
            preceding += chunk * (request.tokens - request.left + chunk / 2)
            request.left -= int(chunk)
            if request.left <= 0:
                done.append(request)
        self._advance(1, self.server.steps.of(self.decoding, computed, self.context, preceding))
        for request in done:
            self.prefilling.remove(request)
            request.decoding, request.since = True, self.step
            self.decoding += 1
            self.number += 1
            request.turn = self.number
            request.generated += 1
            request.tokens += 1
            self.context += request.tokens
            self._use(1)
            self.tally.tokens += self.tally.counting
            if self.tally.counting and request.generated == 1:
                self.tally.first_tokens.append(self.now - request.arrived)
            end = self.step + request.output - request.generated
            if end <= self.step:
                self._end(request)
            else:
                heapq.heappush(self.ends, (end, request.turn, request))

    def _advance(self, steps: int, seconds: float) -> None:
        self.step += steps
        self.now += seconds
        grown = steps * self.decoding
        self.context += grown
        self._use(grown)
        if self.tally.counting:
            self.tally.spend(seconds, grown, len(self.running), len(self.waiting))
        while self.ends and self.ends[0][0] <= self.step:
            _, turn, request = heapq.heappop(self.ends)
            if request.decoding and request.turn == turn:
                self._end(request)

    def _end(self, request: Request) -> None:
        self._release(request)
        del self.running[request]
        self.decoding -= 1
        request.decoding = False
        self.tally.end(self.now - request.arrived, shortened=request.output < request.shape.output)
        self.clients.hear(request, self.now)

    def outcome(self, answers: int) -> Outcome | None:
        demand = self.demand
        warm = max(WARM_UP_ANSWERS, WARM_UP_TURNS * demand.clients)
        wanted = max(ANSWERS, 2 * demand.clients)
        if demand.sessions is not None:
            warm = SESSION_WARM_UP_TURNS * demand.clients
            wanted = max(answers, SESSION_ANSWERS_EACH * demand.clients)
        for _ in range(MAX_TURNS):
            for request in self.clients.come(self.now):
                self.waiting.add(request)
            if not self.running and not self.waiting:
                if self.clients.next_seconds == math.inf or self.now >= MAX_SIMULATED_SECONDS:
                    break
                self.now = max(self.now, self.clients.next_seconds)
                continue
            self._turn()
            warmed = self.tally.answered >= warm if demand.clients else self.now >= OPEN_WARM_UP_RATIO * demand.seconds
            if warmed and not self.tally.counting:
                self.tally.begin(self.now)
            if self.now >= (MAX_SIMULATED_SECONDS if demand.clients else demand.seconds):
                break
            if demand.clients and len(self.tally.latencies) >= wanted:
                break
        refused = sum(self.server.refuses(one) for one in demand.requests) / len(demand.requests)
        return self.tally.outcome(self.now, refused, self.contexts)
