"""In which order requests are taken from the queue, and who of those that run is thrown out.

First come first served: who was thrown out goes to the head, and the last to come is thrown out. By priority: those of
the first class before all others, by arrival within their class; the last of the last class is thrown out.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

from kvpressure.whatif.server import Asked, Server


@dataclass(slots=True, eq=False)
class Request:
    """One request on its way through the server."""

    asked: Asked
    output: int
    came: float
    client: int
    tokens: int = 0
    """Of the prompt and the answer so far: what has to be in the pool for it to go on."""
    made: int = 0
    left: int = 0
    """Of its prompt, to be computed before it decodes."""
    since: int = 0
    thrown_at: float = -1.0
    spared: float = 0.0
    decoding: bool = False
    turn: int = 0


class InOrder(deque[Request]):
    """First come, first served."""

    def add(self, request: Request) -> None:
        """At the end."""
        self.append(request)

    def put_back(self, request: Request) -> None:
        """At the head: it was thrown out."""
        self.appendleft(request)

    def first(self) -> Request:
        """Who is next."""
        return self[0]

    def take(self) -> Request:
        """Take who is next."""
        return self.popleft()

    @staticmethod
    def victim(running: dict[Request, None]) -> Request:
        """The last to come into the batch."""
        return next(reversed(running))


class ShortFirst:
    """Prompts up to so many tokens before longer ones."""

    def __init__(self, tokens: float) -> None:
        self._tokens = tokens
        self._heap: list[tuple[bool, float, int, Request]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """To its class, by arrival."""
        self._number += 1
        heapq.heappush(self._heap, (request.asked.prompt > self._tokens, request.came, self._number, request))

    put_back = add

    def first(self) -> Request:
        """Who is next."""
        return self._heap[0][-1]

    def take(self) -> Request:
        """Take who is next."""
        return heapq.heappop(self._heap)[-1]

    def victim(self, running: dict[Request, None]) -> Request:
        """The last to arrive of the last class."""
        return max(running, key=lambda one: (one.asked.prompt > self._tokens, one.came))


def order_of(server: Server) -> InOrder | ShortFirst:
    """The queue of a server."""
    return InOrder() if math.isinf(server.first_up_to) else ShortFirst(server.first_up_to)
