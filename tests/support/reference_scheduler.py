"""The scheduler that `simulation.scheduler` is a fast form of: one step after the other, each token by itself.

Slow and obvious, and the oracle of the fast one. Without sessions, whose contexts are another subject.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvpressure.simulation.clients import Clients
from kvpressure.simulation.queue_order import Request
from kvpressure.simulation.server import Server


@dataclass(slots=True, eq=False)
class Scheduled:
    """A request in the server: tokens in the pool, answer tokens so far, and prompt tokens still to be computed."""

    request: Request
    tokens: int
    generated: int = 0
    left: int = 0

    @property
    def decodes(self) -> bool:
        return self.left <= 0


class ReferenceScheduler:
    """One engine; `answered` yields who was answered, and when, for as long as anybody sends requests."""

    def __init__(self, server: Server, clients: Clients) -> None:
        self.server, self.clients = server, clients
        self.now = self.allocated = 0.0
        self.waiting: list[Scheduled] = []
        self.running: list[Scheduled] = []
        """In the order in which they were scheduled."""

    def answered(self) -> Iterator[tuple[Request, float]]:
        while True:
            self._arrive()
            if not (self.running or self.waiting):
                self.now = max(self.now, self.clients.arrivals[0][0])
                continue
            if not self._preempt():
                self._admit()
            yield from self._step()

    def _arrive(self) -> None:
        for request in self.clients.come(self.now):
            self.waiting.append(Scheduled(request, request.tokens))

    def used(self) -> float:
        """Tokens of the pool in use: half a block of each is empty, the common beginning is there anyway."""
        return sum(one.tokens - one.request.shared + self.server.block_tokens / 2 for one in self.running)

    def free(self) -> float:
        return self.server.pool_tokens - self.used()

    def _preempt(self) -> bool:
        """Throw out the last one scheduled for as long as those that decode cannot have a token each."""
        preempted = False
        while self.free() < self._decoding() > 0 and len(self.running) > 1:
            thrown_out = self.running.pop()
            request = thrown_out.request
            request.tokens, request.preempted_at_allocated_tokens = thrown_out.tokens, self.allocated
            request.free_tokens_at_preemption = max(0.0, self.free() - self.server.holds(thrown_out.tokens))
            self.waiting.insert(0, thrown_out)
            preempted = True
        return preempted

    def _admit(self) -> None:
        budget = self.server.step_tokens - self._decoding() - sum(one.left for one in self.running if not one.decodes)
        while self.waiting and len(self.running) < self.server.max_num_seqs and budget > 0:
            first = self.waiting[0]
            needs = first.tokens - first.request.shared + self.server.block_tokens / 2
            if self.running and needs > self.free() - self.server.watermark_tokens:
                return
            self.waiting.pop(0)
            first.left = first.request.uncached(self.server, self.allocated)
            self.allocated += needs
            self.running.append(first)
            budget -= first.left

    def _step(self) -> Iterator[tuple[Request, float]]:
        decoding = [one for one in self.running if one.decodes]
        prefilling = [one for one in self.running if not one.decodes]
        context = sum(one.tokens for one in decoding)
        budget, computed, preceding = self.server.step_tokens - len(decoding), 0.0, 0.0
        for one in prefilling:
            chunk = min(one.left, max(0.0, budget - computed))
            preceding += chunk * (one.tokens - one.left + chunk / 2)
            computed += chunk
            one.left -= int(chunk)
        self.now += self.server.steps.of(len(decoding), computed, context, preceding)
        for one in decoding:
            yield from self._token(one)
        for one in prefilling:
            if one.decodes:  # the last chunk of a prompt gives the first token
                yield from self._token(one)

    def _token(self, one: Scheduled) -> Iterator[tuple[Request, float]]:
        one.tokens += 1
        one.generated += 1
        self.allocated += 1
        if one.generated >= one.request.output:
            self.running.remove(one)
            self.clients.hear(one.request, self.now)
            yield one.request, self.now

    def _decoding(self) -> int:
        return sum(one.decodes for one in self.running)
