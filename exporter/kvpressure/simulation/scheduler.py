"""Discrete-event simulation of an engine's scheduler: minutes of virtual time in milliseconds of CPU.

Running requests are scheduled first. One that finds no free block preempts the last one scheduled, which is
recomputed; a step with a preemption admits nothing. Waiting requests are admitted in order, when the whole prompt fits
and the batch is below `max_num_seqs`. Prompts are computed in chunks of a step's token budget. Consecutive steps in
which every sequence only decodes one token are taken at once. Of sessions, what is not running stays in the free part
of the pool until that is needed, the least recently used first.
"""

# ruff: noqa: PLR1730 - min and max are calls, of which a turn would have five more
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from kvpressure.simulation.clients import Clients
from kvpressure.simulation.contexts import Contexts
from kvpressure.simulation.outcome import Outcome, Tally
from kvpressure.simulation.queue_order import Request, queue_of
from kvpressure.simulation.server import Demand, Server, StepSeconds

WARM_UP_TURNS: Final = 2.0
"""Answers per running request that are not counted at the start, when all clients begin at once."""
COARSE_TURNS: Final = 1.0
"""The same where fewer answers are counted than usual."""
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


def counted_answers(demand: Demand, answers: int | None) -> tuple[float, float]:
    """Return how many are not counted at the start, and how many then are at least; `answers` where fewer suffice."""
    least = answers or (ANSWERS if demand.sessions is None else SESSION_ANSWERS)
    if demand.sessions is not None:
        each = SESSION_ANSWERS_EACH if least >= SESSION_ANSWERS else COARSE_SESSION_ANSWERS_EACH
        return SESSION_WARM_UP_TURNS * demand.clients, max(least, each * demand.clients)
    turns = WARM_UP_TURNS if least >= ANSWERS else COARSE_TURNS
    return max(WARM_UP_ANSWERS, turns * demand.clients), max(least, turns * demand.clients)


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


@dataclass(slots=True)
class _At:
    """Where a run is: tokens, seconds of virtual time and steps."""

    used: float
    peak: float = 0.0
    """The most tokens in use since the cache was looked at last."""
    context: float = 0.0
    """Tokens of those that decode, which each step reads."""
    allocated: float = 0.0
    now: float = 0.0
    step: int = 0
    turns: int = 0
    number: int = 0
    decoding: int = 0
    stuck: bool = False
    """The first one who waits does not fit, until tokens are released or another one is first."""
    ended: bool = False


class Simulation:
    """One run, which continues where it stopped if more answers are needed.

    Advice makes a hundred of them, so that all of a turn is written out in `_run`: with a method for each part of it,
    and its state in attributes, a run takes a tenth longer. Its oracle is the slow `ReferenceScheduler` of the tests.
    """

    __slots__ = ("_at", "clients", "contexts", "demand", "ends", "prefilling", "running", "server", "tally", "waiting")

    def __init__(self, server: Server, demand: Demand, pools: Sequence[float] = ()) -> None:
        self.server, self.demand = server, demand
        self.clients = Clients(server, demand)
        self.contexts = None if demand.sessions is None else Contexts(server, pools)
        self.waiting = queue_of(server)
        self.running: dict[Request, None] = {}
        self.prefilling: list[Request] = []
        self.ends: list[tuple[int, int, Request]] = []
        self.tally = Tally()
        # The common beginning of all sessions is always in use.
        self._at = _At(0.0 if demand.sessions is None or not server.reuses else float(demand.sessions.shared))

    def outcome(self, limit_seconds: float = math.inf, answers: int | None = None) -> Outcome | None:
        """Return what clients get; `limit_seconds` and `answers` as for `simulate`."""
        self._run(*counted_answers(self.demand, answers))
        demand, longest = self.demand, self.server.longest_prompt
        refused = sum(shape.prompt > longest for shape in demand.requests) / len(demand.requests)
        if demand.grown_seconds and self._at.now >= demand.seconds and len(self.waiting) > len(self.running):
            self.tally.go_on(demand.grown_seconds - demand.seconds, len(self.waiting))
        return self.tally.outcome(self._at.now, self._at.step, limit_seconds, refused, self.contexts)

    def _run(self, warm: float, needed: float) -> None:  # noqa: C901, PLR0912, PLR0915 - see the class
        """Go on until so many answers are counted, from when so many clients of a closed loop were answered."""
        server = self.server
        clients = self.clients
        contexts = self.contexts
        tally = self.tally
        at = self._at
        waiting = self.waiting
        running = self.running
        prefilling = self.prefilling
        ends = self.ends
        arrivals = clients.arrivals
        latencies = tally.latencies
        shortened = tally.shortened
        steps_of = server.steps.of
        if isinstance(server.steps, StepSeconds):
            steps_of = server.steps.function()
        pool = server.pool_tokens
        most = server.max_num_seqs
        step_tokens = server.step_tokens
        half_block = server.block_tokens / 2
        usable = pool - server.watermark_tokens
        closed = self.demand.waits
        counting = tally.counting
        last = MAX_SIMULATED_SECONDS if closed else self.demand.seconds
        begin, recount = OPEN_WARM_UP_RATIO * self.demand.seconds, self.demand.seconds - self.demand.counted_seconds
        if closed or recount <= begin:
            recount = math.inf
        now = at.now
        step = at.step
        turns = at.turns
        number = at.number
        ended = at.ended
        used = at.used
        peak = at.peak
        context = at.context
        allocated = at.allocated
        decoding, stuck = at.decoding, at.stuck
        generated = tally.tokens
        running_seconds = tally.running_seconds
        waiting_seconds = tally.waiting_seconds
        enough = needed if closed else math.inf
        while turns < MAX_TURNS and not ended and len(latencies) < enough:
            turns += 1
            # Arrivals.
            if arrivals and arrivals[0][0] <= now:
                for request in clients.come(now):
                    waiting.add(request)
                    stuck = stuck and waiting[0] is not request
            if not (running or waiting):
                ended = not arrivals or now >= MAX_SIMULATED_SECONDS
                now = now if ended else max(now, arrivals[0][0])
                continue

            # Preemption: those that decode need a token each.
            preempted = False
            while decoding and pool - used < decoding and len(running) > 1:
                preempted, stuck = True, False
                request = waiting.victim(running)
                del running[request]
                grown = step - request.since if request.decoding else 0
                used -= request.tokens + grown - request.shared + half_block
                if request.decoding:
                    context -= request.tokens + grown
                if contexts is not None:
                    contexts.keep(request, grown, peak)
                    peak = 0.0
                if request.decoding:
                    request.tokens += grown
                    request.generated += grown
                    request.decoding = False
                    decoding -= 1
                else:
                    prefilling.remove(request)
                request.turn += 1
                request.preempted_at_allocated_tokens = allocated
                request.free_tokens_at_preemption = max(0.0, pool - used - server.holds(request.tokens))
                waiting.push_back(request)
                tally.preempted += counting

            # Admission.
            if waiting and not (preempted or stuck) and len(running) < most:
                # In order, as far as they fit the pool, the batch and what is left of a step.
                budget = step_tokens - decoding
                for request in prefilling:
                    budget -= request.left
                while waiting and len(running) < most:
                    request = waiting[0]
                    own = request.tokens - request.shared + half_block
                    if running and own > usable - used:
                        stuck = True
                        break
                    if budget <= 0:
                        break
                    waiting.take()
                    if contexts is None:
                        request.left = request.uncached(server, allocated)
                    else:
                        request.left, peak = contexts.take(request, peak, counting=counting), 0.0
                    used += own
                    allocated += own
                    if used > peak:
                        peak = used
                    running[request] = None
                    prefilling.append(request)
                    budget -= request.left

            # The step, or several at once in which nothing else happens: `steps`, and their `seconds`.
            steps = 1
            whole: list[Request] = []
            if prefilling:
                budget, request = step_tokens - decoding, prefilling[0]
                if 2 * budget < request.left:
                    # As many steps at once as are full of one prompt, so that nobody is admitted.
                    computed = int(budget)
                    steps = (request.left - 1) // max(1, computed)
                    if decoding:
                        steps = min(steps, int((pool - used) / decoding), ends[0][0] - step)
                    before = request.tokens - request.left
                    if steps >= 2 and computed >= 1 and arrivals:
                        each = steps_of(decoding, computed, context, computed * (before + computed / 2))
                        steps = min(steps, math.ceil((arrivals[0][0] - now) / each))
                    steps = steps if steps >= 2 and computed >= 1 else 1
                if steps > 1:
                    preceding = computed * (before + steps * computed / 2)
                    request.left -= steps * computed
                    seconds = steps * steps_of(decoding, computed, context + decoding * (steps - 1) / 2, preceding)
                else:
                    done = 0
                    sum_computed = 0.0
                    preceding = 0.0
                    for request in prefilling:
                        chunk, left = budget - sum_computed, request.left
                        if chunk < 0.0:
                            chunk = 0.0
                        if left <= chunk:
                            chunk = left
                            done += 1
                        sum_computed += chunk
                        preceding += chunk * (request.tokens - left + chunk / 2)
                        request.left = left - int(chunk)
                    seconds = steps_of(decoding, sum_computed, context, preceding)
                    if done:
                        whole = (
                            prefilling[::-1]
                            if done == len(prefilling)
                            else [request for request in reversed(prefilling) if request.left <= 0]
                        )
            elif decoding:
                # As many steps at once as nothing happens in.
                while ends[0][2].turn != ends[0][1] or not ends[0][2].decoding:
                    heappop(ends)
                if not preempted:
                    steps, room = ends[0][0] - step, int((pool - used) / decoding)
                    if room < steps:
                        steps = room
                    if steps > 1 and not waiting and arrivals:
                        room = math.ceil((arrivals[0][0] - now) / steps_of(decoding, 0.0, context))
                        if room < steps:
                            steps = room
                    if steps < 1:
                        steps = 1
                # Contexts grow by a token a step.
                seconds = steps_of(decoding, 0.0, context + decoding * (steps - 1) / 2) * steps
            else:
                steps, seconds = 0, 0.0

            # What they used and gave.
            step += steps
            now += seconds
            grown = steps * decoding
            context += grown
            allocated += grown
            used += grown
            if used > peak:
                peak = used
            if counting:
                generated += grown
                running_seconds += seconds * len(running)
                waiting_seconds += seconds * len(waiting)
            # Answers that end, and prompts that are computed: an answer of one token is both.
            while True:
                while ends and ends[0][0] <= step:
                    _, turn, request = heappop(ends)
                    if request.turn != turn or not request.decoding:
                        continue
                    grown = step - request.since
                    context -= request.tokens + grown
                    used -= request.tokens + grown - request.shared + half_block
                    stuck = False
                    if contexts is not None:
                        contexts.keep(request, grown, peak)
                        peak = 0.0
                    del running[request]
                    decoding -= 1
                    request.decoding = False
                    tally.answered += 1
                    if counting:
                        latencies.append(now - request.arrived)
                        shortened.append(request.output < request.answer)
                    clients.hear(request, now)
                if not whole:
                    break
                request = whole.pop()
                prefilling.remove(request)
                decoding += 1
                number += 1
                request.decoding = True
                request.since = step
                request.turn = number
                request.generated += 1
                request.tokens += 1
                context += request.tokens
                used += 1
                allocated += 1
                if used > peak:
                    peak = used
                if counting:
                    generated += 1
                    if request.generated == 1:
                        tally.first_tokens.append(now - request.arrived)
                heappush(ends, (step + request.output - request.generated, number, request))

            # What is counted from here on.
            if not counting and (tally.answered >= warm if closed else now >= begin):
                tally.begin(now, step)
                counting = True
            if now >= recount:
                recount = math.inf
                # With less of its growth simulated, as much is counted whether it grows or not.
                if self.demand.grown_seconds or len(waiting) > len(
                    running
                ):  # the queue grows: what clients get now, not what they got
                    tally.count_again(now, step, len(waiting))
                    generated = 0
                    running_seconds = 0.0
                    waiting_seconds = 0.0
            ended = now >= last
        tally.tokens = generated
        tally.running_seconds = running_seconds
        tally.waiting_seconds = waiting_seconds
        self._at = _At(used, peak, context, allocated, now, step, turns, number, decoding, stuck=stuck, ended=ended)
