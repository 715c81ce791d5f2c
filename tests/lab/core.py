"""The engine core's loop: one step after the other, with what came in between, and the truth of each moment."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.lab.engine import Engine as VllmEngine
from tests.lab.ledger import Cached
from tests.lab.messages import Outputs, SentRequest, Step
from tests.lab.sglang.engine import Engine as SglangEngine
from tests.lab.truth import Now
from tests.lab.world import World


class Core:
    """`deliver` takes each step's news. `hung`: no step ends; `lost`: nothing that is sent arrives."""

    def __init__(self, world: World, package: Path) -> None:
        self._world, self._package = world, package
        self._clock, self._events, self._book = world.clock, world.events, world.book
        self.deliver: Callable[[Outputs], None] = lambda _: None
        self.inbox: list[SentRequest] = []
        self.hung = self.lost = False
        self._given_up: list[str] = []
        self._between: list[Callable[[], Any]] = []
        self._stepping = False
        self._forgotten: set[bytes] = set()
        self.boot()

    def boot(self) -> None:
        """An engine without a past."""
        regime = self._world.regime
        kind: type[VllmEngine | SglangEngine] = VllmEngine if regime.sglang is None else SglangEngine
        self.engine = kind(regime, self._package, self._clock, self._forgotten)
        self.published: int | None = None
        if self.engine.ledger is not None:
            self._book.cache(self._clock.now, Cached(under_way=0))

    def die(self) -> None:
        """Whatever was under way is gone."""
        ledger = self.engine.ledger
        if ledger is not None:
            self._book.cache(self._clock.now, ledger.end())
            self._forgotten = ledger.known
        self._stepping = self.hung = False
        self.inbox, self._given_up, self._between = [], [], []

    def submit(self, asked: SentRequest) -> None:
        """The API process sends a request."""
        if not self.lost:
            self.inbox.append(asked)
            self._note_presence()
            self.kick()

    def give_up(self, name: str) -> None:
        """The API process says that a client is gone."""
        self._given_up.append(name)

    def after_step(self, act: Callable[[], Any]) -> None:
        """Between two steps of the core."""
        if self._stepping:
            self._between.append(act)
        else:
            act()
            self.kick()

    def kick(self) -> None:
        """Make the next step, if there is one to make and nothing forbids it."""
        if self._stepping or self.hung or self._world.down:
            return
        self.take_inbox()
        if not self.engine.has_work():
            self.published = self.engine.idle(self.published)
            self.rest()
            return
        step = self.engine.schedule()
        self._stepping = True
        self._note(step)
        self._events.in_this_life(self._clock.now + step.seconds, partial(self._finish, step))

    def take_inbox(self) -> None:
        """Hand the engine what has come in."""
        asked, self.inbox = self.inbox, []
        for one in asked:
            if one.name in self.engine.frontend.states:
                self.engine.add(one)
        self._abort_given_up()

    def _abort_given_up(self) -> None:
        names, self._given_up = self._given_up, []
        if names:
            self.engine.abort(names)

    def _finish(self, step: Step) -> None:
        if self.hung:
            self._events.in_this_life(self._clock.now + 0.1, partial(self._finish, step))
            return
        self._stepping = False
        self._abort_given_up()
        news = self.engine.finish(step)
        if news.stats is not None:
            self.published = news.stats.num_running_reqs
        self._count(step, news)
        self.deliver(news)
        acts, self._between = self._between, []
        for act in acts:
            act()
        self.kick()

    # what was true

    def _count(self, step: Step, news: Outputs) -> None:
        states = self.engine.frontend.states
        started = sum(1 for output in news.outputs if (state := states.get(output.request_id)) and state.prefilling)
        if self.engine.observer.advanced() or news.outputs or self._transferred():
            self._book.count(self._clock.now, moved=1)
        self._book.count(self._clock.now, started=started, preempted=step.preempted)
        ledger = self.engine.ledger
        if ledger is not None:
            self._book.cache(self._clock.now, ledger.take(sum(len(output.new_token_ids) for output in news.outputs)))
            self._world.result.checks += ledger.contradictions
            ledger.contradictions.clear()

    def _transferred(self) -> bool:
        connector = self.engine.connector
        return connector is not None and connector.moving

    def _note(self, step: Step) -> None:
        self._book.close(self._clock.now)
        reasons = {reason: count for reason, count in step.reasons.items() if reason != "stream"}
        self._book.now = Now(
            reasons=reasons,
            running=step.running,
            work_ratio=step.work_ratio,
            present=bool(step.running or reasons),
            paused=self._book.now.paused,
            lost=self.lost,
            free=self._free_tokens,
        )

    def rest(self) -> None:
        """No step to make: whoever is there waits for something else than the scheduler."""
        self._book.close(self._clock.now)
        waiting = self.engine.waiting()
        owned = bool(self._world.owners)
        self._book.now = Now(
            reasons={"paused": waiting} if waiting else {},
            present=self.engine.present() or (self.lost and owned),
            paused=self._book.now.paused,
            lost=self.lost and owned,
            free=self._free_tokens,
        )

    @property
    def _free_tokens(self) -> int:
        ledger = self.engine.ledger
        return 0 if ledger is None else ledger.free_tokens

    def _note_presence(self) -> None:
        """Somebody came while the core does nothing."""
        if self.hung and not self._book.now.present:
            self._book.close(self._clock.now)
            self._book.now.present = True
