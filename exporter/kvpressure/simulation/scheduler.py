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
from kvpressure.simulation.server import Demand, Server, StepSeconds

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
    return Simulation(server, demand, pools).outcome(limit_seconds, answers)


class Simulation:
    """One run, which goes on where it stopped if more answers are needed.

    Advice makes a hundred of them: what a turn does is written out where a call would cost as much.
    """

    __slots__ = (
        *("allocated", "clients", "context", "contexts", "decoding", "demand", "ended", "ends", "now", "number"),
        *("peak", "prefilling", "running", "server", "step", "stuck", "tally", "turns", "used", "waiting"),
        *("_half_block", "_pool", "_steps", "_usable"),
    )

    def __init__(self, server: Server, demand: Demand, pools: Sequence[float] = ()) -> None:
        self.server, self.demand = server, demand
        steps = server.steps
        self._steps = steps.function() if isinstance(steps, StepSeconds) else steps.of
        self._half_block = server.block_tokens / 2
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
        self.tally = Tally()
        self.turns, self.ended = 0, False

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
        if self.used > self.peak:
            self.peak = self.used

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
                budget = self.server.step_tokens - self.decoding
                for one in self.prefilling:
                    budget -= one.left
            if budget <= 0:
                break
            waiting.take()
            request.left = self._left(request)
            self._use(needed)
            running[request] = None
            self.prefilling.append(request)
            budget -= request.left

    def _decode(self, *, preempted: bool) -> None:
        """Take one step, or as many as nothing happens in."""
        decoding, ends, steps = self.decoding, self.ends, 1
        while ends[0][2].turn != ends[0][1] or not ends[0][2].decoding:
            heapq.heappop(ends)
        if not preempted:
            steps = ends[0][0] - self.step
            room = int((self._pool - self.used) / decoding)
            if room < steps:
                steps = room
            if steps > 1 and not self.waiting and self.clients.arrivals:
                until = self.clients.arrivals[0][0] - self.now
                before = math.ceil(until / self._steps(decoding, 0.0, self.context))
                if before < steps:
                    steps = before
            if steps < 1:
                steps = 1
        # Contexts grow by a token a step.
        self._advance(steps, self._steps(decoding, 0.0, self.context + decoding * (steps - 1) / 2) * steps)

    def _prefill(self, budget: float) -> None:
        prefilling = self.prefilling
        if 2 * budget < prefilling[0].left and self._prefill_full_steps(prefilling[0], int(budget)):
            return
        computed, preceding, done = 0.0, 0.0, 0
        for request in prefilling:
            chunk, left = budget - computed, request.left
            if chunk < 0.0:
                chunk = 0.0
            if left <= chunk:
                chunk = left
                done += 1
            computed += chunk
            preceding += chunk * (request.tokens - left + chunk / 2)
            request.left = left - int(chunk)
        self._advance(1, self._steps(self.decoding, computed, self.context, preceding))
        if done == len(prefilling):
            whole = prefilling.copy()
            prefilling.clear()
            self._begin_decoding(whole)
        elif done:
            whole = [request for request in prefilling if request.left <= 0]
            for request in whole:
                prefilling.remove(request)
            self._begin_decoding(whole)

    def _begin_decoding(self, done: Sequence[Request]) -> None:
        """Give requests whose prompts are computed their first token."""
        tally, step = self.tally, self.step
        for request in done:
            request.decoding, request.since = True, step
            self.decoding += 1
            self.number += 1
            request.turn = self.number
            request.generated += 1
            request.tokens += 1
            self.context += request.tokens
            self._use(1)
            if tally.counting:
                tally.tokens += 1
                if request.generated == 1:
                    tally.first_tokens.append(self.now - request.arrived)
            end = step + request.output - request.generated
            if end <= step:
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
        self.step = step = self.step + steps
        self.now += seconds
        grown = steps * self.decoding
        self.context += grown
        self.allocated += grown
        self.used = used = self.used + grown
        if used > self.peak:
            self.peak = used
        tally, ends = self.tally, self.ends
        if tally.counting:
            tally.tokens += grown
            tally.running_seconds += seconds * len(self.running)
            tally.waiting_seconds += seconds * len(self.waiting)
        while ends and ends[0][0] <= step:
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

    def outcome(self, limit_seconds: float = math.inf, answers: int | None = None) -> Outcome | None:
        """Return what clients get; `limit_seconds` and `answers` as for `simulate`."""
        demand = self.demand
        answers = answers or (ANSWERS if demand.sessions is None else SESSION_ANSWERS)
        turns = WARM_UP_TURNS if answers >= ANSWERS else COARSE_TURNS
        warm, wanted = max(WARM_UP_ANSWERS, turns * demand.clients), max(answers, turns * demand.clients)
        if demand.sessions is not None:
            warm = SESSION_WARM_UP_TURNS * demand.clients
            each = SESSION_ANSWERS_EACH if answers >= SESSION_ANSWERS else COARSE_SESSION_ANSWERS_EACH
            wanted = max(answers, each * demand.clients)
        self._run(warm, wanted)
        longest = self.server.longest_prompt
        refused = sum(one.prompt > longest for one in demand.requests) / len(demand.requests)
        return self.tally.outcome(self.now, limit_seconds, refused, self.contexts)

    def _run(self, warm: float, wanted: float) -> None:
        """Go on until so many answers are counted, from when so many clients of a closed loop were answered."""
        clients, waiting, running, tally, demand = self.clients, self.waiting, self.running, self.tally, self.demand
        arrivals, prefilling, closed = clients.arrivals, self.prefilling, demand.clients > 0
        last, begin = MAX_SIMULATED_SECONDS if closed else demand.seconds, OPEN_WARM_UP_RATIO * demand.seconds
        latencies, budget, turns = tally.latencies, self.server.step_tokens, self.turns
        while turns < MAX_TURNS and not self.ended and (len(latencies) < wanted or not closed):
            turns += 1
            if arrivals and arrivals[0][0] <= self.now:
                for request in clients.come(self.now):
                    waiting.add(request)
                    self.stuck = self.stuck and waiting.first() is not request
            if not (running or waiting):
                self.ended = not arrivals or self.now >= MAX_SIMULATED_SECONDS
                self.now = max(self.now, clients.next_seconds) if not self.ended else self.now
                continue
            preempted = False
            while self.decoding and self._pool - self.used < self.decoding and len(running) > 1:
                self._preempt()
                preempted = True
            if waiting and not (preempted or self.stuck):
                self._admit()
            if prefilling:
                self._prefill(budget - self.decoding)
            elif self.decoding:
                self._decode(preempted=preempted)
            if not tally.counting and (tally.answered >= warm if closed else self.now >= begin):
                tally.begin(self.now)
            self.ended = self.now >= last
        self.turns = turns
