"""The API process: takes requests, hands out answers, and answers /metrics; one thing after the other."""

from functools import partial
from typing import Final, Protocol

import prometheus_client

from tests.lab.core import Core
from tests.lab.messages import Ended, Outputs, SentRequest
from tests.lab.web import COMPLETIONS, EMBEDDINGS, Web
from tests.lab.world import Answer, Client, Page, World

RETRY_SECONDS: Final = 1.0
COUNTED_SINCE: Final = (0, 32)


class Senders(Protocol):
    """Who hears of what becomes of requests."""

    def again(self, client: Client, seconds: float) -> None:
        """A client has no request under way any more and may send another one in a while."""

    def answered(self, client: Client, asked: SentRequest, tokens: int) -> None:
        """A request has ended with so many tokens."""

    def piece_done(self, name: str) -> None:
        """One piece of a session is answered."""


class Api:
    """`free_at` is when it will have done all it was given. `silent`: it answers no scrape; `late`: news it holds."""

    def __init__(self, world: World, core: Core) -> None:
        self._world, self._core = world, core
        self._clock, self._events, self._frontend = world.clock, world.events, world.regime.frontend
        self.senders: Senders
        self.free_at = world.begin
        self.rejecting = self.silent = False
        self.late: list[Outputs] | None = None
        self.registry = prometheus_client.REGISTRY
        self.boot()

    def boot(self) -> None:
        """A process without a past."""
        self.web = Web(counted=self._world.version >= COUNTED_SINCE)

    def _busy(self, seconds: float) -> float:
        """Take that long of the process; when it will be done."""
        self.free_at = max(self.free_at, self._clock.now) + seconds
        return self.free_at

    # requests

    def receive(self, asked: SentRequest) -> None:
        """A request arrives."""
        self._events.in_this_life(self._busy(self._frontend.request_seconds), partial(self._admit, asked))

    def _admit(self, asked: SentRequest) -> None:
        if asked.name not in self._world.owners:
            return
        reason = self._refusal()
        if reason is not None:
            self._refuse(asked, reason)
            return
        self._core.engine.frontend.expect(asked)
        self._core.submit(asked)

    def _refusal(self) -> str | None:
        flags, frontend = self._world.regime.flags, self._core.engine.frontend
        if self.rejecting:
            return "paused"
        if flags.max_num_queued_reqs is not None and len(frontend.states) + 1 > flags.max_num_queued_reqs:
            return "max_num_queued_reqs"
        if flags.max_num_queued_tokens is not None and frontend.queued_tokens() >= flags.max_num_queued_tokens:
            return "max_num_queued_tokens"
        return None

    def _refuse(self, asked: SentRequest, reason: str) -> None:
        client, _ = self._world.owners.pop(asked.name)
        if reason != "paused":
            self._core.engine.frontend.refuse(reason)
        self._world.book.count(self._clock.now, refused=1)
        self.web.answered(self._handler, 503, 0.001)
        self._world.result.answers.append(Answer(self._clock.now, len(asked.tokens), None, 0.0, ok=False))
        self.senders.again(client, RETRY_SECONDS)

    def give_up(self, asked: SentRequest) -> None:
        """A client ends its request before it is answered in full."""
        self._core.engine.frontend.give_up(asked.name)
        self._core.give_up(asked.name)
        self.web.answered(self._handler, 200, self._clock.now - asked.arrived)

    # answers

    def deliver(self, news: Outputs) -> None:
        """The core's news arrive."""
        if self.late is not None:
            self.late.append(news)
            return
        seconds = self._frontend.output_seconds * len(news.outputs)
        if not seconds and self.free_at <= self._clock.now:
            self._read(news)
        else:
            self._events.in_this_life(self._busy(seconds), partial(self._read, news))

    def _read(self, news: Outputs) -> None:
        frontend = self._core.engine.frontend
        for ended in frontend.record(news):
            self._answered(ended)
        for name in {output.request_id for output in news.outputs if output.finish_reason is not None}:
            if name in self._world.owners and name in frontend.states:
                self.senders.piece_done(name)

    def _answered(self, ended: Ended) -> None:
        owner = self._world.owners.pop(ended.name, None)
        if owner is None:
            return
        client, asked = owner
        self.web.answered(self._handler, 200, ended.seconds)
        ok = "abort" not in ended.reason.lower()
        answer = Answer(self._clock.now, len(asked.tokens), ended, ended.seconds, ok=ok, cut=asked.cut)
        self._world.result.answers.append(answer)
        self.senders.answered(client, asked, ended.tokens)

    # scrapes

    def poll(self) -> None:
        """A scrape: one at a time, answered when the process gets to it."""
        if self._world.down or self.silent:
            self._events.at(self._clock.now + 1, self.poll)
            return
        self._events.at(self._busy(self._frontend.page_seconds), partial(self._answer_poll, self._events.life))

    def _answer_poll(self, life: int) -> None:
        if life != self._events.life:
            self.poll()
            return
        text = prometheus_client.generate_latest(self.registry).decode()
        if self._world.regime.sglang is None:
            text += self.web.page()
        passed = self._clock.now - self._world.begin
        second = min(int(passed - 1e-6), self._world.regime.seconds - 1)
        self._world.result.pages.append(Page(self._clock.now, text, second))
        self._check(text)
        self._events.at(self._world.begin + int(passed + 1e-6) + 1, self.poll)

    def _check(self, text: str) -> None:
        """The page's number of running requests is the scheduler's, as of the last step that was published."""
        published = self._core.published
        if published is None or self.late is not None or self.free_at > self._clock.now:
            return
        line = next(line for line in text.splitlines() if line.startswith(f"{self._core.engine.running_series}{{"))
        if float(line.rsplit(" ", 1)[1]) != published:
            passed = self._clock.now - self._world.begin
            self._world.result.checks.append(f"{passed:.0f} s: {line}, the scheduler: {published}")

    @property
    def _handler(self) -> str:
        return EMBEDDINGS if self._world.regime.flags.runner == "pooling" else COMPLETIONS
