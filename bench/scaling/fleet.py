"""One run: a router that gives each request to the replica with the fewest, and an autoscaler.

Its minutes are judged by the objective: which were bad for those who asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.scaling.autoscalers import DECIDES_EVERY_SECONDS, OTHERS, POLLS_EVERY_SECONDS, Autoscaler, Hpa, Ours
from bench.scaling.replica import STARTS_SECONDS, Replicas, least_requests
from bench.scaling.shapes import (
    FIRST_TOKEN_SECONDS,
    FIRST_TOKEN_TOKENS_PER_SECOND,
    FLAGS,
    PER_TOKEN_SECONDS,
    SHAPES,
    Request,
    Shape,
)
from kvpressure.runtimes.vllm.metrics import ALL_NAMES, POLL_NAMES
from tests.lab.clock import BEGIN, Clock

OUTSIDE_MAX_RATIO: Final = 0.05


@dataclass(frozen=True, slots=True)
class Minute:
    """Requests that ended in it or still waited for their first token at its end, and those of them that were late."""

    counted: int
    late: int
    slow: int

    @property
    def violates(self) -> bool:
        """More than one in twenty waited too long for the first token, or for the ones after it."""
        return self.late + self.slow > OUTSIDE_MAX_RATIO * self.counted


def minute(requests: Iterable[Request], now: float) -> Minute:
    """Judge those that are there at its end, `now`, or ended since the last."""
    counted = late = slow = 0
    for one in requests:
        if one.ended is None and one.first is not None:
            continue
        counted += 1
        within = FIRST_TOKEN_SECONDS + one.prompt / FIRST_TOKEN_TOKENS_PER_SECOND
        if (now if one.first is None else one.first) - one.arrived > within:
            late += 1
        elif one.ended is not None and one.first is not None and one.output > 1:
            slow += (one.ended - one.first) / (one.output - 1) > PER_TOKEN_SECONDS
    return Minute(counted, late, slow)


FULL_EVERY_POLLS: Final = 4
"""The others ask for the small set of names, as the exporter does."""
GAUGES: Final = ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


@dataclass(slots=True)
class Outcome:
    """What came of a run. `counts` is how many replicas there were, each minute."""

    minutes: list[Minute] = field(default_factory=list)
    replica_seconds: float = 0.0
    counts: list[int] = field(default_factory=list)


class Fleet(Replicas):
    """Replicas of one shape's engine under one autoscaler."""

    def __init__(self, shape: Shape, clock: Clock, autoscaler: Autoscaler, first: int) -> None:
        super().__init__(shape, least_requests(), clock)
        self._autoscaler, self._polls, self._counted_until = autoscaler, 0, BEGIN
        self.outcome = Outcome()
        for _ in range(first):
            self.start()
        for number in range(1, shape.seconds // 60 + 1):
            self.events.at(BEGIN + 60 * number, self._close_minute)
        self.events.at(BEGIN + DECIDES_EVERY_SECONDS, self._decide)
        if autoscaler.watches:
            self.events.at(BEGIN + POLLS_EVERY_SECONDS, self._poll)

    def _count(self) -> None:
        """Replica-seconds up to now; one that leaves and has no request left is gone."""
        now = self._clock.now
        self.outcome.replica_seconds += len(self.replicas) * (now - self._counted_until)
        self._counted_until = now
        self.replicas = [one for one in self.replicas if one.requests or not one.leaving]

    def _pages(self, names: Sequence[str]) -> dict[int, bytes]:
        return {one.number: one.page(names) for one in self.serving()}

    def _poll(self) -> None:
        self._polls += 1
        names = ALL_NAMES if self._polls % FULL_EVERY_POLLS == 1 else POLL_NAMES
        self._autoscaler.poll(self._clock.now, self._pages(names))
        self.events.at(self._clock.now + POLLS_EVERY_SECONDS, self._poll)

    def _decide(self) -> None:
        self._count()
        staying = [one for one in self.replicas if not one.leaving]
        wanted = self._autoscaler.wanted(self._clock.now, self._pages(GAUGES), len(staying))
        for _ in range(wanted - len(staying)):
            self.start(self._clock.now + STARTS_SECONDS)
        # Those that still start go first, then the youngest, as a ReplicaSet does it.
        for one in sorted(staying, key=lambda one: -one.number)[: max(0, len(staying) - max(1, wanted))]:
            if len(self.serving()) > 1 or not one.ready(self._clock.now):
                one.leaving = True
        self._count()
        self.events.at(self._clock.now + DECIDES_EVERY_SECONDS, self._decide)

    def _close_minute(self) -> None:
        self._count()
        now = self._clock.now
        there = [one for one in self.requests if one.arrived <= now and (one.ended is None or one.ended > now - 60)]
        self.outcome.minutes.append(minute(there, now))
        self.outcome.counts.append(len(self.replicas))


def answer(wish: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Run the `shape` of a wish with its `autoscaler`: a name, or `static N`."""
    (shape,) = (shape for shape in SHAPES if shape.name == wish["shape"])
    name = wish["autoscaler"]
    if name.startswith("static "):
        always = int(name.split()[1])
        fleet = Fleet(shape, clock, Hpa(lambda *_: always), always)
    else:
        scaler = OTHERS[name]() if name in OTHERS else Ours({**FLAGS, **shape.flags})
        fleet = Fleet(shape, clock, scaler, shape.replicas)
    fleet.run()
    minutes = fleet.outcome.minutes
    return {
        **wish,
        "violating_minutes": sum(one.violates for one in minutes),
        "replica_hours": round(fleet.outcome.replica_seconds / 3600, 3),
        "requests": sum(one.counted for one in minutes),
        "late": sum(one.late for one in minutes),
        "slow": sum(one.slow for one in minutes),
        "replicas": fleet.outcome.counts,
        "bad": [number for number, one in enumerate(minutes, 1) if one.violates],
    }
