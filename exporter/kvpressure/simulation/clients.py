"""Who sends requests to the simulated engine, and when: clients that wait for their answers, sessions, or a rate."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Final

from kvpressure.simulation.queue_order import Request
from kvpressure.simulation.server import Demand, RequestShape, Server
from kvpressure.simulation.sessions import Session, Sessions, begun

START_SECONDS: Final = 2.0
THINK_SECONDS: Final = 0.05
REFUSED_SECONDS: Final = 30.0
SEED: Final = 7
ROUNDS: Final = 8
"""In which all requests are dealt to clients."""
AT_RATE: Final = -1
WAITS_ALREADY: Final = -2


def _spacing(demand: Demand, rng: random.Random) -> Callable[[], float]:
    """Return a function for the seconds to the next request at a rate: constant, by chance, or in bursts."""
    if not demand.rate:
        return lambda: math.inf
    mean = 1 / demand.rate
    if demand.dispersion <= 0:
        return lambda: mean
    shape, count = 1 / demand.dispersion, max(1, round(demand.rate * demand.seconds))
    drawn = [rng.gammavariate(shape, demand.dispersion) for _ in range(count)]
    by = demand.seconds / sum(drawn)
    left = deque(by * gap for gap in drawn)
    # As many as are expected in the time that is simulated, so that it is no sample of a few bursts.
    return lambda: left.popleft() if left else rng.gammavariate(shape, demand.dispersion * mean)


class Clients:
    """Requests in the order in which they come; seconds of virtual time."""

    def __init__(self, server: Server, demand: Demand) -> None:
        self._server = server
        self._demand = demand
        self._longest_prompt = server.longest_prompt
        self._rng = random.Random(SEED)
        # When who comes: a client by its number, or one of an open loop.
        self.arrivals = [(self._rng.random() * START_SECONDS, client) for client in range(demand.clients)]
        self._spacing = _spacing(demand, random.Random(SEED))
        if demand.rate:
            self.arrivals += [(0.0, WAITS_ALREADY)] * demand.queue + [(self._spacing(), AT_RATE)]
        self._deck: list[RequestShape] = []
        self._sessions: dict[int, Session] = {}
        self._begun = demand.clients
        self._think: tuple[float, float] | None = None
        """Logarithms of the shortest think time, and of the longest over it, where they differ."""
        if demand.sessions is not None:
            self._enter(demand.sessions)
        heapq.heapify(self.arrivals)

    def come(self, now: float) -> list[Request]:
        """Return the requests that have come by now; those that are refused come again later."""
        sessions, requests = self._demand.sessions, list[Request]()
        while self.arrivals and self.arrivals[0][0] <= now:
            at, client = heapq.heappop(self.arrivals)
            if client == AT_RATE:
                heapq.heappush(self.arrivals, (at + self._spacing(), AT_RATE))
            request = self._drawn(at, client) if sessions is None else self._turn_of(sessions, at, client)
            if request is not None:
                requests.append(request)
        return requests

    def hear(self, request: Request, now: float) -> None:
        """Let the client of a request that was answered send its next one."""
        if request.client < 0:
            return
        seconds, sessions = THINK_SECONDS, self._demand.sessions
        if sessions is not None:
            if self._sessions[request.client].ended_with(request.prompt, request.output):
                self._begin_again(sessions, request.client)
            seconds = self._thinking(sessions)
        heapq.heappush(self.arrivals, (now + seconds, request.client))

    def _drawn(self, at: float, client: int) -> Request | None:
        """Draw a request: of the client's own part; any where clients are mixed, and in an open loop."""
        server, every = self._server, self._demand.requests
        if client < 0 or self._demand.mixed:
            shape = self._dealt()
        else:
            shape = every[int((client + self._rng.random()) / self._demand.clients * len(every))]
        if shape.prompt > self._longest_prompt:
            if client >= 0:
                # The client sends another request later: one of the same part may be short enough.
                heapq.heappush(self.arrivals, (at + REFUSED_SECONDS, client))
            return None
        output = int(min(shape.output, server.cap_output, server.cap_total - shape.prompt))
        return Request(shape.prompt, shape.output, output, at, client, shape.prompt, shared=shape.prompt - shape.own)

    def _dealt(self) -> RequestShape:
        """Return one of all requests; each comes once before any comes again, so that few stand for all of them."""
        if not self._deck:
            every, shuffle = sorted(self._demand.requests, key=lambda shape: shape.output), self._rng.shuffle
            # Alike in their answers are those that follow each other: of each such group one in each round.
            groups = [every[place : place + ROUNDS] for place in range(0, len(every), ROUNDS)]
            for group in groups:
                shuffle(group)
            for number in range(ROUNDS):
                dealt = [group[number] for group in groups if number < len(group)]
                shuffle(dealt)
                self._deck += dealt
        return self._deck.pop()

    def _enter(self, sessions: Sessions) -> None:
        """Let every client be somewhere in a session and in its think time."""
        clients, (low, high) = range(self._demand.clients), sessions.think
        self._think = (math.log(low), math.log(high) - math.log(low)) if 0 < low < high else None
        self._sessions = {client: begun(sessions, client, self._rng) for client in clients}
        self.arrivals = [(self._rng.random() * self._thinking(sessions), client) for client in clients]

    def _thinking(self, sessions: Sessions) -> float:
        """Return seconds between an answer and the next prompt."""
        if self._think is None:
            return sessions.think[0]
        least, width = self._think
        return math.exp(least + width * self._rng.random())

    def _turn_of(self, sessions: Sessions, at: float, client: int) -> Request | None:
        """Send the next turn of a client's session, here or to another replica."""
        session = self._sessions[client]
        server = self._server
        random = self._rng.random
        elsewhere = random() * sessions.replicas >= 1
        prompt, output = session.turn(random)
        if prompt > self._longest_prompt:
            self._begin_again(sessions, client)
            heapq.heappush(self.arrivals, (at + REFUSED_SECONDS, client))
            return None
        if elsewhere:
            if session.ended_with(prompt, output):
                self._begin_again(sessions, client)
            seconds = output * server.steps.of(1, 0.0, prompt + output / 2)
            heapq.heappush(self.arrivals, (at + seconds + self._thinking(sessions), client))
            return None
        most = output
        if output > server.cap_output or output > server.cap_total - prompt:
            most = int(min(server.cap_output, server.cap_total - prompt))
        return Request(prompt, output, most, at, client, prompt, session=session, shared=sessions.shared)

    def _begin_again(self, sessions: Sessions, client: int) -> None:
        """Let a client begin another session; what the last one had stays in the cache until it is evicted."""
        self._sessions[client] = Session(sessions, self._begun, self._rng)
        self._begun += 1
