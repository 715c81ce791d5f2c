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
import random
from collections.abc import Sequence
from typing import Final

from kvpressure.simulation.contexts import Contexts
from kvpressure.simulation.outcome import Outcome, Tally
from kvpressure.simulation.queue_order import Request, queue_of
from kvpressure.simulation.server import Demand, RequestShape, Server
from kvpressure.simulation.sessions import Session, Sessions, answer, begun, thinking

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
START_SECONDS: Final = 2.0
THINK_SECONDS: Final = 0.05
REFUSED_SECONDS: Final = 30.0
SEED: Final = 7


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
        self.rng = random.Random(SEED)
        self.now = 0.0
        self.step = 0
        # When who comes: a client by its number, -1 whoever comes at the rate, -2 who waits already.
        self.arrivals = [(self.rng.random() * START_SECONDS, client) for client in range(demand.clients)]
        if not demand.clients:
            self.arrivals = [(0.0, -2)] * demand.queue + [(self.rng.expovariate(demand.rate), -1)]
        self.sessions: dict[int, Session] = {}
        self.contexts = None if demand.sessions is None else Contexts(server, pools)
        self.used = 0.0
        if demand.sessions is not None:
            self._enter_sessions(demand.sessions)
        heapq.heapify(self.arrivals)
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

    # the load

    def _drawn(self, client: int) -> RequestShape:
        """Draw a request: of the client's own part; any where clients are mixed, and in an open loop."""
        every = self.demand.requests
        if client < 0 or self.demand.mixed:
            return every[int(self.rng.random() * len(every))]
        place = (client + self.rng.random()) / self.demand.clients
        return every[int(place * len(every))]

    def _enter_sessions(self, sessions: Sessions) -> None:
        """Let every client be somewhere in a session and in its think time; the common beginning is always in use."""
        self.used = float(sessions.shared) if self.server.reuses else 0.0
        for client in range(self.demand.clients):
            self.sessions[client] = begun(sessions, client, self.rng)
        self.number_of_sessions = self.demand.clients
        self.arrivals = [
            (self.rng.random() * thinking(sessions, self.rng), client) for client in range(self.demand.clients)
        ]

    def _turn_of(self, sessions: Sessions, at: float, client: int) -> None:
        """Send the next turn of a client's session, here or to another replica."""
        session, elsewhere = self.sessions[client], self.rng.random() * sessions.replicas >= 1
        prompt, output = session.prompt(self.rng), answer(sessions, self.rng)
        shape = RequestShape(prompt, prompt - sessions.shared, output)
        if self._is_refused(shape):
            self._begin_again(client)
            heapq.heappush(self.arrivals, (at + REFUSED_SECONDS, client))
        elif elsewhere:
            self._heard(client, prompt, output)
            seconds = output * self.server.steps.of(1, 0.0, prompt + output / 2)
            heapq.heappush(self.arrivals, (at + seconds + thinking(sessions, self.rng), client))
        else:
            most = int(min(output, self.server.cap_output, self.server.cap_total - prompt))
            self.waiting.add(Request(shape, most, at, client, tokens=prompt, session=session))

    def _heard(self, client: int, prompt: int, output: int) -> None:
        session = self.sessions[client]
        session.heard(prompt, output)
        if session.over:
            self._begin_again(client)

    def _begin_again(self, client: int) -> None:
        """Let a client begin another session; what the last one had stays in the cache until it is evicted."""
        assert self.demand.sessions is not None  # noqa: S101 - asked for where there are sessions alone
        self.sessions[client] = Session(self.demand.sessions, self.number_of_sessions, self.rng)
        self.number_of_sessions += 1

    def _come(self) -> None:
        server, sessions = self.server, self.demand.sessions
        while self.arrivals and self.arrivals[0][0] <= self.now:
            at, client = heapq.heappop(self.arrivals)
            if client == -1:
                heapq.heappush(self.arrivals, (at + self.rng.expovariate(self.demand.rate), -1))
            if sessions is not None:
                self._turn_of(sessions, at, client)
                continue
            one = self._drawn(client)
            if self._is_refused(one):
                if client >= 0:
                    # The client sends another request later: one of the same part may be short enough.
                    heapq.heappush(self.arrivals, (at + REFUSED_SECONDS, client))
                continue
            output = int(min(one.output, server.cap_output, server.cap_total - one.prompt))
            self.waiting.add(Request(one, output, at, client, tokens=one.prompt))

    def _is_refused(self, one: RequestShape) -> bool:
        """Too long for the edge, or for the pool."""
        server = self.server
        most = min(server.cap_prompt, server.cap_total - 1)
        return one.prompt > most or self._holds(one.prompt) > server.pool_tokens

    # the pool

    def _holds(self, tokens: float) -> float:
        return tokens + self.server.block_tokens / 2

    @property
    def free(self) -> float:
        return self.server.pool_tokens - self.used

    def _release(self, request: Request) -> None:
        grown = self.step - request.since if request.decoding else 0
        if request.decoding:
            self.context -= request.tokens + grown
        self.used -= self._holds(request.tokens + grown - request.shape.shared)
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
        request.free_tokens_at_preemption = max(0.0, self.free - self._holds(request.tokens))
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
            needed = self._holds(request.tokens - request.shape.shared)
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
        if not blocked and self.arrivals:
            until = self.arrivals[0][0] - self.now
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
        if request.client >= 0:
            seconds, sessions = THINK_SECONDS, self.demand.sessions
            if sessions is not None:
                self._heard(request.client, request.shape.prompt, request.output)
                seconds = thinking(sessions, self.rng)
            heapq.heappush(self.arrivals, (self.now + seconds, request.client))

    def outcome(self, answers: int) -> Outcome | None:
        demand = self.demand
        warm = max(WARM_UP_ANSWERS, WARM_UP_TURNS * demand.clients)
        wanted = max(ANSWERS, 2 * demand.clients)
        if demand.sessions is not None:
            warm = SESSION_WARM_UP_TURNS * demand.clients
            wanted = max(answers, SESSION_ANSWERS_EACH * demand.clients)
        for _ in range(MAX_TURNS):
            self._come()
            if not self.running and not self.waiting:
                if not self.arrivals or self.now >= MAX_SIMULATED_SECONDS:
                    break
                self.now = max(self.now, self.arrivals[0][0])
                continue
            self._turn()
            warmed = self.tally.answered >= warm if demand.clients else self.now >= OPEN_WARM_UP_RATIO * demand.seconds
            if warmed and not self.tally.counting:
                self.tally.begin(self.now)
            if self.now >= (MAX_SIMULATED_SECONDS if demand.clients else demand.seconds):
                break
            if demand.clients and len(self.tally.latencies) >= wanted:
                break
        refused = sum(self._is_refused(one) for one in demand.requests) / len(demand.requests)
        return self.tally.outcome(self.now, refused, self.contexts)
