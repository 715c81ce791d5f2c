"""The decoding part of a batch, kept in aggregate so that a step costs the same for 2 sequences or 200.

A decoding request grows by one token per step, so *when* it needs its next block and *when* it ends is known the
moment it joins: `phase[r]` counts the requests that need a block at steps s with s mod block_size = r.
"""

from __future__ import annotations

import heapq

from bench.simulator.request import Request


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
