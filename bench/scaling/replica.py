"""Replicas: engines of the lab that take requests as a router gives them, each with a page of its own.

Routers say who sends which request where: four as people have them, and one that knows what fits.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import prometheus_client

from bench.scaling.shapes import COST, FLAGS, Request, Shape
from tests.lab.clock import BEGIN, Clock
from tests.lab.engine import Engine
from tests.lab.events import Events
from tests.lab.fetch import NEWEST, package
from tests.lab.messages import SentRequest, Step
from tests.lab.regime import Cost, Flags, Regime

Router = Callable[[Request, Sequence["Replica"]], "Replica"]
WORTH_MIN_RATIO: Final = 0.5
"""A prefix-affine router follows a prefix that is this share of the prompt or more."""
BEST: Final = "where it fits"


def round_robin() -> Router:
    """In turn."""
    turns = itertools.count()
    return lambda _, replicas: replicas[next(turns) % len(replicas)]


def least_requests() -> Router:
    """To the one with the fewest requests, which run or wait."""
    return lambda _, replicas: min(replicas, key=lambda one: len(one.requests))


def session_sticky() -> Router:
    """By the session alone."""
    return lambda request, replicas: replicas[request.session % len(replicas)]


def prefix_affine() -> Router:
    """To the one that had the prefix last, if that is much of the prompt; else to the one with the fewest requests."""
    had: dict[int, Replica] = {}
    fewest = least_requests()

    def send(request: Request, replicas: Sequence[Replica]) -> Replica:
        worth = request.shared >= WORTH_MIN_RATIO * request.prompt
        chosen = had[request.session] if worth and request.session in had else fewest(request, replicas)
        had[request.session] = chosen
        return chosen

    return send


def where_it_fits() -> Router:
    """To the one with the fewest tokens, times how slow it is; a prefix that it has counts for it."""
    had: dict[int, set[int]] = {}

    def cost(request: Request, one: Replica) -> float:
        found = request.shared if one.number in had.get(request.session, ()) else 0
        tokens = sum(other.prompt + other.output for other in one.requests.values())
        return one.slower * (tokens + request.prompt + request.output - found)

    def send(request: Request, replicas: Sequence[Replica]) -> Replica:
        chosen = min(replicas, key=lambda one: cost(request, one))
        had.setdefault(request.session, set()).add(chosen.number)
        return chosen

    return send


ROUTERS: Final[Mapping[str, Callable[[], Router]]] = {
    "round robin": round_robin,
    "least requests": least_requests,
    "session-sticky": session_sticky,
    "prefix-affine": prefix_affine,
}


STARTS_SECONDS: Final = 90.0
"""From the decision to the first request: a pod is scheduled, weights are loaded, graphs are captured."""
FIRST_TOKEN: Final = 1_000
FIRST_SESSION: Final = 1_000_000


class _Engine(Engine):
    """Without the reasons why requests wait, which nobody here asks for."""

    def schedule(self) -> Step:
        """Decide the next step."""
        decision = self.scheduler.schedule()
        seconds, _ = self._seconds(decision.num_scheduled_tokens)
        return Step(decision, seconds, 0.0, Counter(), len(self.scheduler.running), 0)


class Replica:
    """`ready` from `ready_at` on; one that is `leaving` gets no new requests, and is gone when it has none left."""

    def __init__(self, number: int, shape: Shape, events: Events, ready_at: float) -> None:
        self.number, self.ready_at, self.slower = number, ready_at, shape.slower.get(number, 1.0)
        self.leaving = False
        self.requests: dict[str, Request] = {}
        self._events, self._stepping, self._inbox = events, False, list[SentRequest]()
        # vLLM's collectors go to the registry of the process, where there is room for those of one engine only.
        flags = Flags(**{**FLAGS, **shape.flags})
        cost = Cost(**{key: self.slower * seconds for key, seconds in COST.items()})
        regime = Regime(name=shape.name, family="scaling", about=shape.about, expect="", flags=flags, cost=cost)
        self._engine = _Engine(regime, package(NEWEST), events.clock)
        self._registry = prometheus_client.CollectorRegistry(auto_describe=True)
        for collector in list(prometheus_client.REGISTRY._collector_to_names):  # noqa: SLF001 - no other way to list
            prometheus_client.REGISTRY.unregister(collector)
            self._registry.register(collector)

    def ready(self, now: float) -> bool:
        """Whether it gets requests."""
        return not self.leaving and now >= self.ready_at

    def page(self, names: Sequence[str]) -> bytes:
        """What `/metrics?name[]=` says of these names."""
        return prometheus_client.generate_latest(self._registry.restricted_registry(names))

    def send(self, name: str, request: Request) -> None:
        """A request comes."""
        self.requests[name] = request
        request.waits_since = self._events.clock.now
        number = int(name[1:])
        own = [FIRST_TOKEN + number] + [1] * (request.prompt - request.shared - 1)
        begin = [FIRST_SESSION + request.session] + [1] * (request.shared - 1) if request.shared else []
        asked = SentRequest(name, begin + own, request.output, self._events.clock.now)
        self._engine.frontend.expect(asked)
        self._inbox.append(asked)
        self._step()

    def _step(self) -> None:
        if self._stepping:
            return
        inbox, self._inbox = self._inbox, []
        for asked in inbox:
            self._engine.add(asked)
        if not self._engine.has_work():
            return
        step = self._engine.schedule()
        self._note_waits(step.decision)
        self._stepping = True
        self._events.at(self._events.clock.now + step.seconds, self._done(step))

    def _note_waits(self, decision: Any) -> None:
        """Those that are admitted have waited; those that are preempted wait again."""
        now = self._events.clock.now
        for name in decision.preempted_req_ids or ():
            self.requests[name].waits_since = now
        for name in decision.num_scheduled_tokens:
            request = self.requests[name]
            if request.waits_since is not None:
                request.waits.append((request.waits_since, now))
                request.waits_since = None

    def _done(self, step: Step) -> Callable[[], None]:
        def finish() -> None:
            self._stepping = False
            news: Any = self._engine.finish(step)
            now = self._events.clock.now
            for output in news.outputs:
                request = self.requests.get(output.request_id)
                if request is not None and request.first is None:
                    request.first = now
            for ended in self._engine.frontend.record(news):
                self.requests.pop(ended.name).ended = now
            self._step()

        return finish


class Replicas:
    """Those of one run, on its virtual clock, and the requests of its traffic, which a router gives them."""

    def __init__(self, shape: Shape, router: Router, clock: Clock) -> None:
        clock.now = BEGIN
        self.requests, self.replicas, self.events = shape.requests(), list[Replica](), Events(clock)
        self._shape, self._router, self._clock, self._made = shape, router, clock, 0
        for number, request in enumerate(self.requests):
            self.events.at(request.arrived, partial(self._arrive, f"r{number}", request))

    def run(self) -> None:
        """Play all of it."""
        self.events.play(BEGIN + self._shape.seconds, self._move)

    def start(self, ready_at: float = BEGIN) -> None:
        """One more."""
        self.replicas.append(Replica(self._made, self._shape, self.events, ready_at))
        self._made += 1

    def serving(self) -> list[Replica]:
        """Those that get requests."""
        return [one for one in self.replicas if one.ready(self._clock.now)]

    def _move(self, t: float) -> None:
        self._clock.now = max(self._clock.now, t)

    def _arrive(self, name: str, request: Request) -> None:
        self._router(request, self.serving()).send(name, request)
