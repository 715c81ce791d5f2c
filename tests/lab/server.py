"""One run of the lab: clients, one API process and one engine core, on one virtual clock."""

from pathlib import Path

from tests.lab.api import Api
from tests.lab.clients import Clients
from tests.lab.clock import Clock
from tests.lab.core import Core
from tests.lab.faults import Faults
from tests.lab.regime import Regime
from tests.lab.truth import BEHIND_SECONDS, Book
from tests.lab.world import Result, World


class Server:
    """One run of a regime. `run` gives the result; `book` has what was true."""

    def __init__(self, regime: Regime, package: Path, version: str, clock: Clock) -> None:
        self._world = World(regime, version, clock)
        self._core = Core(self._world, package)
        self._api = Api(self._world, self._core)
        self._clients = Clients(self._world, self._core, self._api)
        self._core.deliver, self._api.senders = self._api.deliver, self._clients

    @property
    def book(self) -> Book:
        """What was true in each second."""
        return self._world.book

    def run(self) -> Result:
        """Play all of it."""
        world, regime = self._world, self._world.regime
        for number, load in enumerate(regime.load):
            self._clients.enter(number, load)
        faults = Faults(world, self._core, self._api, self._clients)
        for fault in regime.fault:
            faults.enter(fault)
        world.events.at(world.begin + 1, self._api.poll)
        world.events.play(world.begin + regime.seconds, self._move)
        world.result.preempted += self._core.engine.observer.preempted_ever
        world.result.unfinished = len(world.owners)
        return world.result

    def _move(self, t: float) -> None:
        """Take the clock to `t`, and book the time that passes."""
        world = self._world
        now, behind = world.clock.now, self._api.free_at - world.clock.now > BEHIND_SECONDS
        world.book.close(t)
        if behind:
            second = min(int(now - world.begin), world.regime.seconds)
            world.book.seconds[second].state["behind"] += max(0.0, t - now)
        world.clock.now = max(now, t)
