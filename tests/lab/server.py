"""The lab's event loop: clients, one API process and one engine core, on one virtual clock."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import prometheus_client

from tests.lab.clock import Clock
from tests.lab.engine import Asked, Ended, Engine, Grammar, Outputs, Step
from tests.lab.regime import Fault, Load, Regime
from tests.lab.truth import BEHIND_SECONDS, Book, Now
from tests.lab.web import COMPLETIONS, EMBEDDINGS, Web

RETRY_SECONDS: Final = 1.0
COUNTED_SINCE: Final = (0, 32)
REJECTS_SINCE: Final = (0, 33)


@dataclass(slots=True)
class Page:
    """One answer of /metrics: when it came, its text, and the second of the run in which it came."""

    t: float
    text: str
    second: int


@dataclass(slots=True)
class Answer:
    """One request as its client saw it. `ok`: answered in full; else refused or given up."""

    t: float
    prompt: int
    ended: Ended | None
    seconds: float
    ok: bool


@dataclass(slots=True)
class Result:
    """What a run leaves behind."""

    pages: list[Page] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    preempted: int = 0
    unfinished: int = 0
    checks: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Client:
    """Who sends, and what is under way: the request's name and when it was first sent."""

    load: Load
    rng: random.Random
    number: int
    closed: bool
    pieces_left: int = 0


class Server:
    """One run of a regime. `run` gives the result; `book` has what was true."""

    def __init__(self, regime: Regime, package: Path, version: str, clock: Clock) -> None:
        self._regime, self._package, self.clock = regime, package, clock
        self._version = tuple(int(part) for part in version.split(".")[:2])
        self._begin = clock.now
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._names = itertools.count(1)
        self.book = Book(self._begin, regime.seconds)
        self.result = Result()
        self._inbox: list[Asked] = []
        self._given_up: list[str] = []
        self._owners: dict[str, tuple[Client, Asked]] = {}
        self._api_free_at = self._core_free_at = self._begin
        self._compiler_free_at = self._begin
        self._stepping = self._hung = self._lost = self._silent = self._down = False
        self._rejecting = False
        self._late: list[Outputs] | None = None
        self._life = 0
        self._boot()

    def run(self) -> Result:
        """Play all of it."""
        for number, load in enumerate(self._regime.load):
            self._enter(number, load)
        for fault in self._regime.fault:
            self._at(self._begin + fault.at, partial(self._fault, fault))
        self._at(self._begin + 1, self._poll)
        end = self._begin + self._regime.seconds
        while self._events and self._events[0][0] <= end:
            t, _, act = heapq.heappop(self._events)
            self._move(t)
            act()
        self._move(end)
        self.result.preempted += self._engine.observer.preempted_ever
        self.result.unfinished = len(self._owners)
        return self.result

    # time

    def _at(self, t: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (t, next(self._order), act))

    def _in_this_life(self, t: float, act: Callable[[], None]) -> None:
        """Only if the server is not restarted before."""
        life = self._life

        def unless_restarted() -> None:
            if self._life == life:
                act()

        self._at(t, unless_restarted)

    def _move(self, t: float) -> None:
        behind = self._api_free_at - self.clock.now > BEHIND_SECONDS
        self.book.close(t)
        if behind:
            self.book.seconds[min(int(self.clock.now - self._begin), self._regime.seconds)].state["behind"] += max(
                0.0, t - self.clock.now
            )
        self.clock.now = max(self.clock.now, t)

    # the API process

    def _busy(self, seconds: float) -> float:
        """Take that long of the API process; when it will be done."""
        self._api_free_at = max(self._api_free_at, self.clock.now) + seconds
        return self._api_free_at

    def _receive(self, client: Client, asked: Asked) -> None:
        self._owners[asked.name] = (client, asked)
        if client.load.timeout_seconds:
            self._in_this_life(self.clock.now + client.load.timeout_seconds, partial(self._time_out, asked.name))
        self._in_this_life(self._busy(self._regime.frontend.request_seconds), partial(self._admit, asked))

    def _admit(self, asked: Asked) -> None:
        if asked.name not in self._owners:
            return
        reason = self._refusal()
        if reason is not None:
            self._refuse(asked, reason)
            return
        self._engine.expect(asked)
        if not self._lost:
            self._inbox.append(asked)
            self._note_presence()
            self._kick()

    def _refusal(self) -> str | None:
        flags = self._regime.flags
        if self._rejecting:
            return "paused"
        if flags.max_num_queued_reqs is not None and len(self._engine.states) + 1 > flags.max_num_queued_reqs:
            return "max_num_queued_reqs"
        if flags.max_num_queued_tokens is not None and self._engine.queued_tokens() >= flags.max_num_queued_tokens:
            return "max_num_queued_tokens"
        return None

    def _refuse(self, asked: Asked, reason: str) -> None:
        client, _ = self._owners.pop(asked.name)
        if reason != "paused":
            self._engine.refuse(reason)
        self.book.count(self.clock.now, refused=1)
        self._web.answered(self._handler, 503, 0.001)
        self.result.answers.append(Answer(self.clock.now, len(asked.tokens), None, 0.0, ok=False))
        self._again(client, RETRY_SECONDS)

    def _deliver(self, news: Outputs) -> None:
        if self._late is not None:
            self._late.append(news)
            return
        seconds = self._regime.frontend.output_seconds * len(news.outputs)
        if not seconds and self._api_free_at <= self.clock.now:
            self._read(news)
        else:
            self._in_this_life(self._busy(seconds), partial(self._read, news))

    def _read(self, news: Outputs) -> None:
        for ended in self._engine.record(news):
            self._answered(ended)
        for name in {output.request_id for output in news.outputs if output.finish_reason is not None}:
            if name in self._owners and name in self._engine.states:
                self._piece_done(name)

    def _answered(self, ended: Ended) -> None:
        owner = self._owners.pop(ended.name, None)
        if owner is None:
            return
        client, asked = owner
        self._web.answered(self._handler, 200, ended.seconds)
        ok = "abort" not in ended.reason.lower()
        self.result.answers.append(Answer(self.clock.now, len(asked.tokens), ended, ended.seconds, ok=ok))
        self._again(client, client.load.think_seconds * client.rng.uniform(0.5, 1.5))

    def _poll(self) -> None:
        """A scrape: one at a time, answered when the API process gets to it."""
        if self._down or self._silent:
            self._at(self.clock.now + 1, self._poll)
            return
        self._at(self._busy(self._regime.frontend.page_seconds), partial(self._answer_poll, self._life))

    def _answer_poll(self, life: int) -> None:
        if life != self._life:
            self._poll()
            return
        text = prometheus_client.generate_latest(prometheus_client.REGISTRY).decode() + self._web.page()
        second = min(int(self.clock.now - self._begin - 1e-6), self._regime.seconds - 1)
        self.result.pages.append(Page(self.clock.now, text, second))
        self._check(text)
        due = self._begin + int(self.clock.now - self._begin + 1e-6) + 1
        self._at(due, self._poll)

    def _check(self, text: str) -> None:
        """The page's number of running requests is the scheduler's, as of the last step that was published."""
        if self._published is None or self._late is not None or self._api_free_at > self.clock.now:
            return
        line = next(line for line in text.splitlines() if line.startswith("vllm:num_requests_running{"))
        if float(line.rsplit(" ", 1)[1]) != self._published:
            self.result.checks.append(f"{self.clock.now - self._begin:.0f} s: {line}, the scheduler: {self._published}")

    @property
    def _handler(self) -> str:
        return EMBEDDINGS if self._regime.flags.runner == "pooling" else COMPLETIONS

    # the engine core

    def _boot(self) -> None:
        self._engine = Engine(self._regime, self._package, self.clock)
        self._web = Web(counted=self._version >= COUNTED_SINCE)
        self._published: int | None = None

    def _kick(self) -> None:
        """Make the next step, if there is one to make and nothing forbids it."""
        if self._stepping or self._hung or self._down:
            return
        self._take_inbox()
        if not self._engine.has_work():
            self._rest()
            return
        step = self._engine.schedule()
        self._stepping = True
        self._note(step)
        self._in_this_life(self.clock.now + step.seconds, partial(self._finish, step))

    def _take_inbox(self) -> None:
        asked, self._inbox = self._inbox, []
        for one in asked:
            if one.name in self._engine.states:
                self._engine.add(one)
        names, self._given_up = self._given_up, []
        if names:
            self._engine.abort(names)

    def _finish(self, step: Step) -> None:
        if self._hung:
            self._in_this_life(self.clock.now + 0.1, partial(self._finish, step))
            return
        self._stepping = False
        names, self._given_up = self._given_up, []
        if names:
            self._engine.abort(names)
        news = self._engine.finish(step)
        started = sum(
            1 for output in news.outputs if (state := self._engine.states.get(output.request_id)) and state.prefilling
        )
        if news.stats is not None:
            self._published = news.stats.num_running_reqs
        if self._engine.observer.advanced() or news.outputs or self._transferred():
            self.book.count(self.clock.now, moved=1)
        self.book.count(self.clock.now, started=started, preempted=step.preempted)
        self._deliver(news)
        self._kick()

    def _transferred(self) -> bool:
        connector = self._engine.connector
        return connector is not None and connector.moving

    def _note(self, step: Step) -> None:
        self.book.close(self.clock.now)
        reasons = {reason: count for reason, count in step.reasons.items() if reason != "stream"}
        self.book.now = Now(
            reasons=reasons,
            running=step.running,
            work_ratio=step.work_ratio,
            present=bool(step.running or reasons),
            paused=self.book.now.paused,
            lost=self._lost,
        )

    def _rest(self) -> None:
        """No step to make: whoever is there waits for something else than the scheduler."""
        self.book.close(self.clock.now)
        waiting = sum(request.status.name != "WAITING_FOR_STREAMING_REQ" for request in self._engine.observer.waiting())
        self.book.now = Now(
            reasons={"paused": waiting} if waiting else {},
            present=self._engine.present() or (self._lost and bool(self._owners)),
            paused=self.book.now.paused,
            lost=self._lost and bool(self._owners),
        )

    def _note_presence(self) -> None:
        """Somebody came while the core does nothing."""
        if self._hung and not self.book.now.present:
            self.book.close(self.clock.now)
            self.book.now.present = True

    # clients

    def _enter(self, number: int, load: Load) -> None:
        rng = random.Random(f"{self._regime.name}/{self._regime.seed}/{number}")
        for client in range(load.clients):
            # Not all at once: nobody's clients start in the same millisecond.
            begin = self._begin + load.begin + rng.random() * 2
            self._at(begin, partial(self._send, Client(load, random.Random(rng.random()), client, closed=True)))
        if load.rate:
            self._at(self._begin + load.begin, partial(self._come, Client(load, rng, 0, closed=False)))

    def _come(self, client: Client) -> None:
        if self.clock.now - self._begin < client.load.end:
            self._send(client)
            self._at(self.clock.now + client.rng.expovariate(client.load.rate), partial(self._come, client))

    def _again(self, client: Client, seconds: float) -> None:
        if client.closed:
            self._at(self.clock.now + seconds, partial(self._send, client))

    def _send(self, client: Client) -> None:
        if self.clock.now - self._begin >= client.load.end:
            return
        if self._down:
            self._again(client, RETRY_SECONDS)
            return
        self._receive(client, self._made(client))

    def _made(self, client: Client) -> Asked:
        load, rng, number = client.load, client.rng, next(self._names)
        length = round(rng.uniform(*load.prompt))
        group = rng.randrange(load.prefix_groups)
        shared = [2 + group] * min(load.prefix, length - 1)
        own = [1_000 + number] + [1] * (length - len(shared) - 1)
        client.pieces_left = load.pieces
        return Asked(
            name=f"r{number}",
            tokens=shared + own,
            output=max(1, round(rng.uniform(*load.output))),
            arrived=self.clock.now,
            adapter=1 + rng.randrange(load.adapters) if load.adapters else 0,
            priority=rng.choice(load.priorities),
            grammar=self._grammar(load) if load.grammar else None,
            resumable=load.pieces > 0,
            remote=load.remote,
            images=((len(shared), load.image_tokens),) if load.image_tokens else (),
        )

    def _grammar(self, load: Load) -> Grammar:
        """Compiled one after the other."""
        self._compiler_free_at = max(self._compiler_free_at, self.clock.now) + load.grammar_seconds
        return Grammar(self.clock, self._compiler_free_at)

    def _time_out(self, name: str) -> None:
        owner = self._owners.pop(name, None)
        if owner is None:
            return
        client, asked = owner
        self._engine.give_up(name)
        self._given_up.append(name)
        self._web.answered(self._handler, 200, self.clock.now - asked.arrived)
        self.result.answers.append(
            Answer(self.clock.now, len(asked.tokens), None, self.clock.now - asked.arrived, ok=False)
        )
        self._kick()
        self._again(client, 0.2)

    def _piece_done(self, name: str) -> None:
        """A session's answer to one piece is there; the next piece comes later, or the session ends."""
        client, asked = self._owners[name]
        client.pieces_left -= 1
        seconds = client.load.piece_gap_seconds * client.rng.uniform(0.5, 1.5)
        self._in_this_life(self.clock.now + seconds, partial(self._next_piece, name, asked))

    def _next_piece(self, name: str, asked: Asked) -> None:
        if name not in self._owners:
            return
        client, _ = self._owners[name]
        if client.pieces_left > 0:
            length = round(client.rng.uniform(*client.load.prompt))
            asked.tokens = [1] * length
            asked.arrived = self.clock.now
            self._inbox.append(asked)
        else:
            del self._owners[name]
            self._engine.give_up(name)
            self._given_up.append(name)
            self._web.answered(self._handler, 200, self.clock.now - asked.arrived)
            self._again(client, client.load.think_seconds)
        self._kick()

    # what goes wrong

    def _fault(self, fault: Fault) -> None:
        begin, end = getattr(self, f"_{fault.kind}")(fault)
        begin()
        self._at(self._begin + fault.until, end)

    def _hang(self, _: Fault) -> tuple[Callable[[], None], Callable[[], None]]:
        def begin() -> None:
            self._hung = True
            self.book.close(self.clock.now)
            self.book.now.present = self._engine.present() or bool(self._inbox)

        def end() -> None:
            self._hung = False
            self._kick()

        return begin, end

    def _pause(self, fault: Fault) -> tuple[Callable[[], None], Callable[[], None]]:
        return partial(self._stop, fault.mode, "/pause"), partial(self._resume, "/resume")

    def _sleep(self, fault: Fault) -> tuple[Callable[[], None], Callable[[], None]]:
        def begin() -> None:
            self._web.under_way("sleep", 1)
            self._stop(fault.mode, "/sleep")
            self._engine.sleep_state(asleep=True)
            self._in_this_life(self.clock.now + 3, partial(self._web.under_way, "sleep", -1))

        def end() -> None:
            self._engine.sleep_state(asleep=False)
            self._resume("/wake_up")

        return begin, end

    def _weights(self, _: Fault) -> tuple[Callable[[], None], Callable[[], None]]:
        def begin() -> None:
            self._stop("keep", "/pause")
            self._web.under_way("update", 1)

        def end() -> None:
            self._web.under_way("update", -1)
            self._preempt_all()
            self._resume("/resume")

        return begin, end

    def _reset_prefix_cache(self, _: Fault) -> tuple[Callable[[], None], Callable[[], None]]:
        return self._preempt_all, lambda: None

    def _preempt_all(self) -> None:
        self._after_step(lambda: self._engine.scheduler.reset_prefix_cache(reset_running_requests=True))

    def _after_step(self, act: Callable[[], Any]) -> None:
        """Between two steps of the core."""
        if self._stepping:
            self._in_this_life(self.clock.now + 0.001, partial(self._after_step, act))
        else:
            act()
            self._kick()

    def _stop(self, mode: str, endpoint: str) -> None:
        def act() -> None:
            self._take_inbox()
            if mode == "abort":
                names = self._engine.abort(list(self._engine.scheduler.requests))
                self._deliver(self._engine.aborted(names))
            self._engine.pause("PAUSED_ALL" if mode == "keep" else "PAUSED_NEW")
            self._rejecting = mode != "keep" and endpoint == "/pause" and self._version >= REJECTS_SINCE
            self._rest()
            self.book.now.paused = True

        self._after_step(act)
        self._web.answered(endpoint, 200, 0.05)

    def _resume(self, endpoint: str) -> None:
        self.book.close(self.clock.now)
        self.book.now.paused = False
        self._rejecting = False
        self._engine.pause("UNPAUSED")
        self._web.answered(endpoint, 200, 0.05)
        self._kick()

    def _restart(self, _: Fault) -> tuple[Callable[[], None], Callable[[], None]]:
        def begin() -> None:
            self.result.preempted += self._engine.observer.preempted_ever
            self._life += 1
            self._down, self._stepping, self._hung = True, False, False
            self.book.close(self.clock.now)
            self.book.now = Now(down=True)
            clients = [client for client, _ in self._owners.values()]
            self._owners, self._inbox, self._given_up = {}, [], []
            for client in clients:
                self._again(client, RETRY_SECONDS)
            self._api_free_at = self.clock.now

        def end() -> None:
            self._down = False
            self._api_free_at = self.clock.now
            self._boot()
            self._rest()

        return begin, end

    def _silence(self, _: Fault) -> tuple[Callable[[], None], Callable[[], None]]:
        return partial(setattr, self, "_silent", True), partial(setattr, self, "_silent", False)

    def _drop(self, _: Fault) -> tuple[Callable[[], None], Callable[[], None]]:
        def begin() -> None:
            def act() -> None:
                self._lost = True
                self._inbox.clear()
                self._engine.abort(list(self._engine.scheduler.requests))
                self._kick()

            self._after_step(act)

        return begin, partial(setattr, self, "_lost", False)

    def _stall(self, _: Fault) -> tuple[Callable[[], None], Callable[[], None]]:
        connector = self._engine.connector
        return partial(setattr, connector, "stalled", True), partial(setattr, connector, "stalled", False)

    def _late_gauges(self, _: Fault) -> tuple[Callable[[], None], Callable[[], None]]:
        def begin() -> None:
            self._late = []

        def end() -> None:
            late, self._late = self._late or [], None
            for news in late:
                self._deliver(news)

        return begin, end
