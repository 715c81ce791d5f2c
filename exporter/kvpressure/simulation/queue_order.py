"""Scheduling policies: the order in which the queue is served, and which running request is preempted.

First come, first served: a preempted request goes back to the head, and the last one scheduled is preempted. Priority:
the first class before all others, by arrival within a class; the last to arrive of the last class is preempted.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

from kvpressure.simulation.server import Server
from kvpressure.simulation.sessions import Session


@dataclass(slots=True, eq=False)
class Request:
    """The state of one request in the simulated server. Times are seconds of virtual time, `since` is a step number."""

    prompt: int
    """Tokens of the prompt."""
    answer: int
    """Tokens of the answer that is requested; `output` is what a cap leaves of it."""
    output: int
    arrived: float
    client: int
    tokens: int = 0
    """Tokens of the prompt and of the answer so far, which have to be in the pool."""
    generated: int = 0
    left: int = 0
    """Prompt tokens to be computed before it decodes."""
    since: int = 0
    preempted_at_allocated_tokens: float = -1.0
    free_tokens_at_preemption: float = 0.0
    decoding: bool = False
    turn: int = 0
    session: Session | None = None
    shared: int = 0
    """Prompt tokens of the common beginning, which a prefix cache always has."""

    def uncached(self, server: Server, allocated_tokens: float) -> int:
        """Return the tokens that have to be computed when it is admitted, where there are no sessions.

        Cached are the common beginning, and own blocks that were not allocated again since it was preempted.
        """
        if self.preempted_at_allocated_tokens < 0:
            return self.tokens - self.shared
        if server.kv_offload:
            return 1
        if not server.reuses:
            return self.tokens - self.shared
        lost = max(0.0, allocated_tokens - self.preempted_at_allocated_tokens - self.free_tokens_at_preemption)
        cached = int(min(self.tokens - 1, max(0.0, self.tokens - lost)))
        return self.tokens - max(self.shared, cached)


class FirstComeFirstServed(deque[Request]):
    """First come, first served, the next one at 0; a preempted request is pushed back to the head."""

    add = deque.append
    push_back = deque.appendleft
    take = deque.popleft

    @staticmethod
    def victim(running: dict[Request, None]) -> Request:
        """Return the request to preempt: the last one scheduled."""
        return next(reversed(running))


class ShortPromptsFirst:
    """Prompts up to so many tokens before longer ones."""

    def __init__(self, tokens: float) -> None:
        self._tokens = tokens
        self._heap: list[tuple[bool, float, int, Request]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Insert a request into its class, by arrival."""
        self._number += 1
        heapq.heappush(self._heap, (request.prompt > self._tokens, request.arrived, self._number, request))

    push_back = add

    def __getitem__(self, place: int) -> Request:
        """Return the next request, at 0, and leave it."""
        return self._heap[place][-1]

    def take(self) -> Request:
        """Remove and return the next request."""
        return heapq.heappop(self._heap)[-1]

    def victim(self, running: dict[Request, None]) -> Request:
        """Return the request to preempt: the last to arrive of the last class."""
        return max(running, key=lambda request: (request.prompt > self._tokens, request.arrived))


def queue_of(server: Server) -> FirstComeFirstServed | ShortPromptsFirst:
    """Return an empty queue with the server's scheduling policy."""
    return (
        FirstComeFirstServed()
        if math.isinf(server.priority_max_prompt_tokens)
        else ShortPromptsFirst(server.priority_max_prompt_tokens)
    )
