"""One run: a router that gives each request to the replica with the fewest, and an autoscaler.

Its minutes are judged by the objective: which were bad for those who asked. An autoscaler decides how many replicas
run: ours, as shipped, and those that people use, by their own rules. Where a rule is not our own, an HPA with its
defaults stands behind it, as it does in a cluster: up at once, down to the highest that was recommended in five
minutes, and not at all within a tenth of the target.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

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
from kvpressure.config.thresholds import Thresholds, load_thresholds
from kvpressure.engines.reader import PageReader
from kvpressure.model.values import at
from kvpressure.runtimes.vllm.metrics import ALL_NAMES, POLL_NAMES
from kvpressure.signals import Context
from kvpressure.signals.past import EngineHistory
from tests.lab.clock import BEGIN, Clock
from tests.support.desired_replicas import ReplicaReading, desired_replicas, required_replicas

MAX_REPLICAS: Final = 8
DECIDES_EVERY_SECONDS: Final = 15.0
TOLERANCE: Final = 0.1
STABLE_SECONDS: Final = 300.0
POLLS_EVERY_SECONDS: Final = 2.5
"""The exporter polls every second; a verdict's window of 20 s holds the eight polls that it needs at this pace too."""

_GAUGE: Final = re.compile(rb"^vllm:(num_requests_waiting|kv_cache_usage_perc)\{[^}]*\} ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a replica's page says at one moment: requests that wait, share of the cache in use."""

    waiting: float
    usage: float


def seen(page: bytes) -> Seen:
    """The two gauges of a page that the other rules read."""
    found = {name: float(value) for name, value in _GAUGE.findall(page)}
    return Seen(found[b"num_requests_waiting"], found[b"kv_cache_usage_perc"])


class Autoscaler(Protocol):
    """`watches` says that it wants pages at the exporter's pace, through `poll`."""

    watches: bool

    def poll(self, now: float, pages: Mapping[int, bytes]) -> None:
        """The pages of all replicas that serve, by number."""

    def wanted(self, now: float, pages: Mapping[int, bytes], current: int) -> int:
        """Replicas to run; `current` is how many there are, those that still start included."""


@dataclass(slots=True)
class Hpa:
    """`recommend` gives replicas for what is seen of those that serve and for how many there are."""

    recommend: Callable[[Sequence[Seen], int], int]
    watches: bool = False
    _recommended: deque[tuple[float, int]] = field(default_factory=deque)

    def poll(self, *_: object) -> None:
        """Reads at its own pace only."""

    def wanted(self, now: float, pages: Mapping[int, bytes], current: int) -> int:
        """Up to at most twice as many, or four more, at a time."""
        recommended = self.recommend([seen(page) for page in pages.values()], current)
        recommended = min(MAX_REPLICAS, max(1, recommended), max(2 * current, current + 4))
        if not self._recommended:
            self._recommended.append((now, current))
        self._recommended.append((now, recommended))
        while self._recommended[0][0] < now - STABLE_SECONDS:
            self._recommended.popleft()
        return max(recommended, min(current, max(value for _, value in self._recommended)))


def by_value(value: Callable[[Sequence[Seen]], float], target: float) -> Callable[[Sequence[Seen], int], int]:
    """A metric of type Value: as many times the replicas that serve as the value is the target."""

    def recommend(replicas: Sequence[Seen], current: int) -> int:
        ratio = value(replicas) / target if replicas else 1.0
        return current if abs(ratio - 1) <= TOLERANCE else math.ceil(ratio * len(replicas))

    return recommend


def by_average(total: Callable[[Sequence[Seen]], float], target: float) -> Callable[[Sequence[Seen], int], int]:
    """A metric of type AverageValue: as many replicas as the target goes into the total."""

    def recommend(replicas: Sequence[Seen], current: int) -> int:
        ratio = total(replicas) / target
        return current if abs(ratio / current - 1) <= TOLERANCE else math.ceil(ratio)

    return recommend


def _queue(replicas: Sequence[Seen]) -> float:
    return sum(one.waiting for one in replicas)


def _usage(replicas: Sequence[Seen]) -> float:
    return sum(one.usage for one in replicas) / len(replicas)


def _gateway(replicas: Sequence[Seen]) -> float:
    """The inference gateway's detector: an endpoint is full at a queue of 5 or at 0.8 of its cache; mean over all."""
    return sum(max(one.waiting / 5, one.usage / 0.8) for one in replicas) / len(replicas)


def llm_d(replicas: Sequence[Seen], current: int) -> int:
    """llm-d's saturation analyzer: one more while spare room is short, one less where the rest would keep it.

    Spare is 0.8 of the cache less what is in use, and five requests less those that wait, on average over replicas that
    are beyond neither; short is less than 0.1 or than 3. Nothing while a replica starts.
    """
    if current > len(replicas) or not replicas:
        return current
    free = [one for one in replicas if one.usage < 0.8 and one.waiting < 5]
    if not free:
        return current + 1
    usage, waiting = sum(one.usage for one in free), sum(one.waiting for one in free)
    if 0.8 - usage / len(free) < 0.1 or 5 - waiting / len(free) < 3:
        return current + 1
    rest = len(free) - 1
    if rest >= 1 and 0.8 - usage / rest >= 0.1 and 5 - waiting / rest >= 3:
        return current - 1
    return current


@dataclass(frozen=True, slots=True)
class _Said:
    """What ours said at a moment; `most` is the larger of what it requested and of what served."""

    t: float
    required: float | None
    desired: int
    most: int


class Ours:
    """The exporter's features and the function beside the recording rules. `declared` are limits read from a pod."""

    watches = True

    def __init__(self, declared: Mapping[str, float], thresholds: Thresholds | None = None) -> None:
        self._thresholds, self._declared = thresholds or load_thresholds(), declared
        self._engines: dict[int, tuple[PageReader, EngineHistory]] = {}
        self._readings: dict[int, ReplicaReading] = {}
        self._before: deque[_Said] = deque()
        self._began: float | None = None

    def poll(self, now: float, pages: Mapping[int, bytes]) -> None:
        """One poll of every engine."""
        self._readings = {}
        for number, text in pages.items():
            if number not in self._engines:
                self._engines[number] = PageReader(), EngineHistory(60.0, 600.0)
            reader, past = self._engines[number]
            page = reader.read(text, now)
            (sample,) = page.engines
            past.take(page, sample, None, restarted=False)
            context = Context(
                self._thresholds,
                max_num_seqs=self._declared.get("max_num_seqs"),
                max_num_batched_tokens=self._declared.get("max_num_batched_tokens"),
            )
            derived = past.reading(context).derived
            found = {name: at(derived, "demand_replicas", name) for name in ("kv_tokens", "sequences", "prefill")}
            demand = {name: value for name, value in found.items() if value is not None}
            self._readings[number] = ReplicaReading(str(number), demand)

    def wanted(self, now: float, _: Mapping[int, bytes], current: int) -> int:
        """What the recording rules would say now."""
        readings, hold = list(self._readings.values()), self._thresholds.scaling.down_hold_seconds
        self._began = now if self._began is None else self._began
        while self._before and self._before[0].t < now - 2 * hold:
            self._before.popleft()
        then = [one for one in self._before if one.t <= now - hold]
        desired = desired_replicas(
            readings,
            self._thresholds,
            [one.required for one in self._before if one.t >= now - hold and one.required is not None],
            whole=now - self._began >= hold,
            before=then[-1].most if then else None,
            highest_recent=max((one.desired for one in self._before), default=0),
        )
        required = required_replicas(readings, self._thresholds)
        self._before.append(_Said(now, required, desired or 0, max(len(readings), desired or 0)))
        return current if desired is None else min(MAX_REPLICAS, desired)


OTHERS: Final[Mapping[str, Callable[[], Autoscaler]]] = {
    "KEDA, queue length 5": lambda: Hpa(by_average(_queue, 5.0)),
    "KEDA, usage 0.6": lambda: Hpa(by_value(_usage, 0.6)),
    "llm-d saturation": lambda: Hpa(llm_d),
    "gateway detector": lambda: Hpa(by_value(_gateway, 1.0)),
}


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
