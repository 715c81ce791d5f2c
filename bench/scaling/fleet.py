"""One run: a router that gives each request to the replica with the fewest, and an autoscaler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from bench.scaling.autoscalers import DECIDES_EVERY_SECONDS, POLLS_EVERY_SECONDS, Autoscaler
from bench.scaling.judge import Minute, minute
from bench.scaling.replica import STARTS_SECONDS, Replica, Request
from bench.scaling.shapes import COST, FLAGS, SECONDS, Arrival, Shape
from kvpressure.runtimes.vllm.metrics import ALL_NAMES, POLL_NAMES
from tests.lab.clock import BEGIN, Clock
from tests.lab.events import Events
from tests.lab.regime import Cost, Flags, Regime

FIRST_REPLICAS: Final = 2
FULL_EVERY_POLLS: Final = 4
"""The others ask for the small set of names, as the exporter does."""
GAUGES: Final = ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


@dataclass(slots=True)
class Outcome:
    """What came of a run. `counts` is how many replicas there were, each minute."""

    minutes: list[Minute] = field(default_factory=list)
    replica_seconds: float = 0.0
    counts: list[int] = field(default_factory=list)

    @property
    def violating(self) -> int:
        """Minutes outside the objective."""
        return sum(one.violates for one in self.minutes)


class Fleet:
    """Replicas of one shape's engine under one autoscaler."""

    def __init__(self, shape: Shape, package: Path, clock: Clock, autoscaler: Autoscaler, first: int) -> None:
        clock.now = BEGIN
        flags, cost = Flags(**{**FLAGS, **shape.flags}), Cost(**COST)
        self._regime = Regime(name=shape.name, family="scaling", about=shape.about, expect="", flags=flags, cost=cost)
        self._package, self._autoscaler, self._clock = package, autoscaler, clock
        self._events = Events(clock)
        self._replicas: list[Replica] = []
        self._made, self._sent, self._polls = 0, 0, 0
        self._open: list[Request] = []
        self._counted_until = BEGIN
        self.outcome = Outcome()
        for _ in range(first):
            self._start(BEGIN)
        for arrival in shape.arrivals():
            self._events.at(BEGIN + arrival.t, partial(self._arrive, arrival))
        for number in range(1, SECONDS // 60 + 1):
            self._events.at(BEGIN + 60 * number, self._close_minute)
        self._events.at(BEGIN + DECIDES_EVERY_SECONDS, self._decide)
        if autoscaler.watches:
            self._events.at(BEGIN + POLLS_EVERY_SECONDS, self._poll)

    def run(self) -> Outcome:
        """Play all of it."""
        self._events.play(BEGIN + SECONDS, self._move)
        return self.outcome

    def _move(self, t: float) -> None:
        self._clock.now = max(self._clock.now, t)

    def _start(self, ready_at: float) -> None:
        self._made += 1
        self._replicas.append(Replica(self._made, self._regime, self._package, self._events, ready_at))

    def _serving(self) -> list[Replica]:
        return [one for one in self._replicas if one.ready(self._clock.now)]

    def _arrive(self, arrival: Arrival) -> None:
        request = Request(self._clock.now, arrival.prompt, arrival.output)
        self._open.append(request)
        self._sent += 1
        least = min(self._serving(), key=lambda one: (len(one.requests), one.number))
        least.send(f"r{self._sent}", request)

    def _count(self) -> None:
        """Replica-seconds up to now; one that leaves and has no request left is gone."""
        now = self._clock.now
        self.outcome.replica_seconds += len(self._replicas) * (now - self._counted_until)
        self._counted_until = now
        self._replicas = [one for one in self._replicas if one.requests or not one.leaving]

    def _pages(self, names: Sequence[str]) -> dict[int, bytes]:
        return {one.number: one.page(names) for one in self._serving()}

    def _poll(self) -> None:
        self._polls += 1
        names = ALL_NAMES if self._polls % FULL_EVERY_POLLS == 1 else POLL_NAMES
        self._autoscaler.poll(self._clock.now, self._pages(names))
        self._events.at(self._clock.now + POLLS_EVERY_SECONDS, self._poll)

    def _decide(self) -> None:
        self._count()
        staying = [one for one in self._replicas if not one.leaving]
        wanted = self._autoscaler.wanted(self._clock.now, self._pages(GAUGES), len(staying))
        for _ in range(wanted - len(staying)):
            self._start(self._clock.now + STARTS_SECONDS)
        # Those that still start go first, then the youngest, as a ReplicaSet does it.
        for one in sorted(staying, key=lambda one: -one.number)[: max(0, len(staying) - max(1, wanted))]:
            if len(self._serving()) > 1 or not one.ready(self._clock.now):
                one.leaving = True
        self._count()
        self._events.at(self._clock.now + DECIDES_EVERY_SECONDS, self._decide)

    def _close_minute(self) -> None:
        self._count()
        now = self._clock.now
        self.outcome.minutes.append(minute(self._open, now))
        self.outcome.counts.append(len(self._replicas))
        self._open = [one for one in self._open if one.ended is None]
