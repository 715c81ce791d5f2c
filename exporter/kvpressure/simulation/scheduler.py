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
COARSE_TURNS: Final = 1.0
"""The same where fewer answers are wanted than usual."""
COARSE_ANSWERS: Final = 180
"""For what is simulated otherwise than is likeliest: enough to be set beside itself."""
WARM_UP_ANSWERS: Final = 20
ANSWERS: Final = 240
"""Least number of counted answers; with many clients twice their number."""
SESSION_WARM_UP_TURNS: Final = 6.0
SESSION_ANSWERS: Final = 1200
"""Near the cliff hits swing from minute to minute."""
SESSION_ANSWERS_EACH: Final = 16
COARSE_SESSION_ANSWERS: Final = 600
COARSE_SESSION_ANSWERS_EACH: Final = 10
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
    how many are counted at least.
    """
    least = ANSWERS if demand.sessions is None else SESSION_ANSWERS
    return _Run(server, demand, limit_seconds, pools).outcome(answers or least)


class _Run:
    """One run. Advice makes a hundred of them: what a turn does is written out where a call would cost as much."""

    __slots__ = (
        *("allocated", "clients", "context", "contexts", "decoding", "demand", "ends", "now", "number", "prefilling"),
        *("peak", "running", "server", "step", "stuck", "tally", "used", "waiting", "_half_block", "_pool", "_steps"),
        "_usable",
    )

    def __init__(self, server: Server, demand: Demand, limit: float, pools: Sequence[float]) -> None:
        self.server, self.demand = server, demand
        self._steps, self._half_block = server.steps.of, server.block_tokens / 2
        self._pool, self._usable = server.pool_tokens, server.pool_tokens - server.watermark_tokens
        self.clients = Clients(server, demand)
        self.now, self.step = 0.0, 0
        self.contexts = None if demand.sessions is None else Contexts(server, pools)
        # The common beginning of all sessions is always in use.
        self.used = 0.0 if demand.sessions is None or not server.reuses else float(demand.sessions.shared)
        self.peak = 0.0
        """The most tokens in use since the cache was looked at last."""
        self.waiting = queue_of(server)
        self.running: dict[Request, None] = {}
        self.prefilling: list[Request] = []
        self.ends: list[tuple[int, int, Request]] = []
        self.decoding = 0
        self.context = 0.0
        """Tokens of those that decode, which each step reads."""
        self.allocated = 0.0
        self.stuck = False
        """The first one who waits does not fit, until tokens are released or another one is first."""
        self.number = 0
        self.tally = Tally(limit)

    def _release(self, request: Request) -> None:
        grown = self.step - request.since if request.decoding else 0
        if request.decoding:
            self.context -= request.tokens + grown
        self.used -= request.tokens + grown - request.shared + self._half_block
        self.stuck = False
        if self.contexts is not None:
            self.contexts.keep(request, grown, self.peak)
            self.peak = 0.0

    def _use(self, tokens: float) -> None:
        """Take free tokens into use."""
        self.used += tokens
        self.allocated += tokens
        self.peak = max(self.peak, self.used)

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
        request.free_tokens_at_preemption = max(0.0, self._pool - self.used - self.server.holds(request.tokens))
        self.waiting.push_back(request)
        self.tally.preempted += self.tally.counting

    def _left(self, request: Request) -> int:
        """Return the tokens of a request that have to be computed; of sessions, loaded ones count by their time."""
        if self.contexts is None:
            return request.tokens - self._cached(request)
        left, self.peak = self.contexts.take(request, self.peak, counting=self.tally.counting), 0.0
        return left

    def _cached(self, request: Request) -> int:
        """Return cached tokens: the common prefix, and own blocks that were not reallocated since its preemption."""
        shared = request.shared
        if request.preempted_at_allocated_tokens >= 0 and self.server.kv_offload:
            return request.tokens - 1
        if request.preempted_at_allocated_tokens < 0 or not self.server.reuses:
            return shared
        lost = max(0.0, self.allocated - request.preempted_at_allocated_tokens - request.free_tokens_at_preemption)
        return max(shared, int(min(request.tokens - 1, max(0.0, request.tokens - lost))))

    def _admit(self) -> None:
        """Admit those who wait, in order, as far as they fit the pool, the batch and what is left of a step."""
        waiting, running, most, budget = self.waiting, self.running, self.server.max_num_seqs, None
        while waiting and len(running) < most:
            request = waiting.first()
            needed = request.tokens - request.shared + self._half_block
            if running and needed > self._usable - self.used:
                self.stuck = True
                break
            if budget is None:
                budget = self.server.step_tokens - self.decoding - sum(one.left for one in self.prefilling)
            if budget <= 0:
                break
            waiting.take()
            request.left = self._left(request)
            self._use(needed)
            running[request] = None
            self.prefilling.append(request)
            budget -= request.left

    def _turn(self) -> None:
        """One step, or as many as nothing happens in."""
        preempted, pool = False, self._pool
        while self.decoding and pool - self.used < self.decoding and len(self.running) > 1:
            self._preempt()
            preempted = True
        if self.waiting and not (preempted or self.stuck):
            self._admit()
        if self.prefilling:
            self._prefill(self.server.step_tokens - self.decoding)
            return
        decoding, ends, steps = self.decoding, self.ends, 1
        if not decoding:
            return
        while ends[0][2].turn != ends[0][1] or not ends[0][2].decoding:
            heapq.heappop(ends)
        if not preempted:
            steps, room = ends[0][0] - self.step, int((pool - self.used) / decoding)
            steps = min(steps, room)
            if steps > 1 and not self.waiting:
                until = self.clients.next_seconds - self.now
                if until < math.inf:
                    steps = min(steps, math.ceil(until / self._steps(decoding, 0.0, self.context)))
            steps = max(steps, 1)
        # Contexts grow by a token a step.
        self._advance(steps, self._steps(decoding, 0.0, self.context + decoding * (steps - 1) / 2) * steps)

    def _prefill(self, budget: float) -> None:
        if 2 * budget < self.prefilling[0].left and self._prefill_full_steps(self.prefilling[0], int(budget)):
            return
        computed, preceding, done = 0.0, 0.0, []
        for request in self.prefilling:
            chunk = min(request.left, max(0.0, budget - computed))
            computed += chunk
            preceding += chunk * (request.tokens - request.left + chunk / 2)
            request.left -= int(chunk)
            if request.left <= 0:
                done.append(request)
        self._advance(1, self._steps(self.decoding, computed, self.context, preceding))
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

    def _prefill_full_steps(self, request: Request, computed: int) -> bool:
        """Take the steps at once that are full of one prompt, so that nobody is admitted; False for less than two."""
        steps = (request.left - 1) // max(1, computed)
        if self.decoding:
            room = int((self._pool - self.used) / self.decoding)
            steps = min(steps, room, self.ends[0][0] - self.step)
        if steps < 2 or computed < 1:
            return False
        before, until = request.tokens - request.left, self.clients.next_seconds - self.now
        if until < math.inf:
            each = self._steps(self.decoding, computed, self.context, computed * (before + computed / 2))
            steps = min(steps, math.ceil(until / each))
            if steps < 2:
                return False
        context, preceding = self.context + self.decoding * (steps - 1) / 2, computed * (before + steps * computed / 2)
        request.left -= steps * computed
        self._advance(steps, steps * self._steps(self.decoding, computed, context, preceding))
        return True

    def _advance(self, steps: int, seconds: float) -> None:
        self.step += steps
        self.now += seconds
        grown = steps * self.decoding
        self.context += grown
        self.used += grown
        self.allocated += grown
        self.peak = max(self.peak, self.used)
        tally = self.tally
        if tally.counting:
            tally.tokens += grown
            tally.running_seconds += seconds * len(self.running)
            tally.waiting_seconds += seconds * len(self.waiting)
        ends = self.ends
        while ends and ends[0][0] <= self.step:
            _, turn, request = heapq.heappop(ends)
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
        turns = WARM_UP_TURNS if answers >= ANSWERS else COARSE_TURNS
        warm, wanted = max(WARM_UP_ANSWERS, turns * demand.clients), max(answers, turns * demand.clients)
        if demand.sessions is not None:
            warm = SESSION_WARM_UP_TURNS * demand.clients
            each = SESSION_ANSWERS_EACH if answers >= SESSION_ANSWERS else COARSE_SESSION_ANSWERS_EACH
            wanted = max(answers, each * demand.clients)
        last = MAX_SIMULATED_SECONDS if demand.clients else demand.seconds
        clients, waiting, running, tally = self.clients, self.waiting, self.running, self.tally
        arrivals, longest = clients.arrivals, self.server.longest_prompt
        for _ in range(MAX_TURNS):
            if arrivals and arrivals[0][0] <= self.now:
                for request in clients.come(self.now):
                    waiting.add(request)
                    self.stuck = self.stuck and waiting.first() is not request
            if not running and not waiting:
                if clients.next_seconds == math.inf or self.now >= MAX_SIMULATED_SECONDS:
                    break
                self.now = max(self.now, clients.next_seconds)
                continue
            self._turn()
            if not tally.counting and (
                tally.answered >= warm if demand.clients else self.now >= OPEN_WARM_UP_RATIO * demand.seconds
            ):
                tally.begin(self.now)
            if self.now >= last or (demand.clients and len(tally.latencies) >= wanted):
                break
        refused = sum(one.prompt > longest for one in demand.requests) / len(demand.requests)
        return self.tally.outcome(self.now, refused, self.contexts)
