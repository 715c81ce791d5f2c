"""What goes wrong: each kind of fault as what begins and what ends it."""

from collections.abc import Callable
from functools import partial
from typing import Final

from tests.lab.api import RETRY_SECONDS, Api
from tests.lab.clients import Clients
from tests.lab.core import Core
from tests.lab.regime import Fault
from tests.lab.truth import Now
from tests.lab.world import World

REJECTS_SINCE: Final = (0, 33)
Ends = tuple[Callable[[], None], Callable[[], None]]


class Faults:
    """The faults of one run."""

    def __init__(self, world: World, core: Core, api: Api, clients: Clients) -> None:
        self._world, self._core, self._api, self._clients = world, core, api, clients
        self._clock, self._events, self._book = world.clock, world.events, world.book

    def enter(self, fault: Fault) -> None:
        """Plan it."""
        self._events.at(self._world.begin + fault.at, partial(self._begin, fault))

    def _begin(self, fault: Fault) -> None:
        begin, end = getattr(self, f"_{fault.kind}")(fault)
        begin()
        self._events.at(self._world.begin + fault.until, end)

    # the core

    def _hang(self, _: Fault) -> Ends:
        def begin() -> None:
            self._core.hung = True
            self._book.close(self._clock.now)
            self._book.now.present = self._core.engine.present() or bool(self._core.inbox)

        def end() -> None:
            self._core.hung = False
            self._core.kick()

        return begin, end

    def _drop(self, _: Fault) -> Ends:
        def act() -> None:
            self._core.lost = True
            self._core.inbox.clear()
            self._core.engine.abort(list(self._core.engine.scheduler.requests))
            self._core.kick()

        return partial(self._core.after_step, act), partial(setattr, self._core, "lost", False)

    def _stall(self, _: Fault) -> Ends:
        connector = self._core.engine.connector
        return partial(setattr, connector, "stalled", True), partial(setattr, connector, "stalled", False)

    # what an operator does

    def _pause(self, fault: Fault) -> Ends:
        return partial(self._stop, fault.mode, "/pause"), partial(self._resume, "/resume")

    def _sleep(self, fault: Fault) -> Ends:
        def begin() -> None:
            self._api.web.under_way("sleep", 1)
            self._stop(fault.mode, "/sleep")
            self._core.engine.frontend.sleep_state(asleep=True)
            self._events.in_this_life(self._clock.now + 3, partial(self._api.web.under_way, "sleep", -1))

        def end() -> None:
            self._core.engine.frontend.sleep_state(asleep=False)
            self._resume("/wake_up")

        return begin, end

    def _weights(self, _: Fault) -> Ends:
        def begin() -> None:
            self._stop("keep", "/pause")
            self._api.web.under_way("update", 1)

        def end() -> None:
            self._api.web.under_way("update", -1)
            self._preempt_all()
            self._resume("/resume")

        return begin, end

    def _reset_prefix_cache(self, _: Fault) -> Ends:
        return self._preempt_all, lambda: None

    def _preempt_all(self) -> None:
        self._core.after_step(lambda: self._core.engine.scheduler.reset_prefix_cache(reset_running_requests=True))

    def _stop(self, mode: str, endpoint: str) -> None:
        def act() -> None:
            engine = self._core.engine
            self._core.take_inbox()
            if mode == "abort":
                names = engine.abort(list(engine.scheduler.requests))
                self._api.deliver(engine.aborted(names))
            engine.pause("PAUSED_ALL" if mode == "keep" else "PAUSED_NEW")
            self._api.rejecting = mode != "keep" and endpoint == "/pause" and self._world.version >= REJECTS_SINCE
            self._core.rest()
            self._book.now.paused = True

        self._core.after_step(act)
        self._api.web.answered(endpoint, 200, 0.05)

    def _resume(self, endpoint: str) -> None:
        self._book.close(self._clock.now)
        self._book.now.paused = False
        self._api.rejecting = False
        self._core.engine.pause("UNPAUSED")
        self._api.web.answered(endpoint, 200, 0.05)
        self._core.kick()

    # the server

    def _restart(self, _: Fault) -> Ends:
        return self._down, self._up

    def _down(self) -> None:
        world = self._world
        world.result.preempted += self._core.engine.observer.preempted_ever
        self._events.life += 1
        world.down = True
        self._core.die()
        self._book.close(self._clock.now)
        self._book.now = Now(down=True)
        clients = [client for client, _ in world.owners.values()]
        world.owners.clear()
        for client in clients:
            self._clients.again(client, RETRY_SECONDS)
        self._api.free_at = self._clock.now

    def _up(self) -> None:
        self._world.down = False
        self._api.free_at = self._clock.now
        self._core.boot()
        self._api.boot()
        self._core.rest()

    def _silence(self, _: Fault) -> Ends:
        return partial(setattr, self._api, "silent", True), partial(setattr, self._api, "silent", False)

    def _late_gauges(self, _: Fault) -> Ends:
        def begin() -> None:
            self._api.late = []

        def end() -> None:
            late, self._api.late = self._api.late or [], None
            for news in late:
                self._api.deliver(news)

        return begin, end
