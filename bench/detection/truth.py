"""What a simulated engine itself knows of why requests wait: the labels that verdicts are scored against.

A phase's label is an intention; here the scheduler is watched at work. Every second of wall time is booked under what
kept the head of the queue from being admitted, under how much longer than an empty step the steps took, and under
how far the API process was behind. Shares over 20 s around a second then say which causes are true in it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from bench.simulator.config import EngineConfig, LinearCost, StepTime, StepWork
from bench.simulator.scheduler import Rank
from bench.simulator.service import Scenario, SimulatedServer
from bench.simulator.stats import Request

Accepted = frozenset[str]
"""The causes that may be named in a second: one where the truth is clear, more where it is between two."""

SMOOTHING_SECONDS: Final = 10
NEARBY_SECONDS: Final = 30
BEHIND_SECONDS: Final = 0.25
CLEAR_SHARE: Final = 0.5
"""From this share of the time on, what blocks admission is the bottleneck."""
SLIGHT_SHARE: Final = 0.1
"""Up to this share it is not: one request in ten waits for a moment."""
SATURATED_SHARE: Final = 0.7
"""From this share of work beyond an empty step on, another request costs its full time: the GPU is the bottleneck."""
UNSATURATED_SHARE: Final = 1 / 3
"""Up to this share twice as much would fit into the steps."""
PREEMPTED_RATIO: Final = 0.01
"""From this share of admitted requests on, preempting may be called KV pressure even if hardly anyone waits."""


@dataclass(slots=True)
class Book:
    """Seconds since the last reading, by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=dict)
    since: float = 0.0

    def close(self, now: float, why: str, work_ratio: float, *, present: bool) -> None:
        """Book the time up to `now`; what was booked before is not booked twice."""
        elapsed = max(0.0, now - self.since)
        self.since = max(self.since, now)
        booked = {why: elapsed, "work": elapsed * work_ratio, "present": elapsed * present, "all": elapsed}
        for name, seconds in booked.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def read(self) -> dict[str, float]:
        """Shares of the time since the last reading."""
        total = self.seconds.pop("all", 0.0)
        shares = {name: seconds / total for name, seconds in self.seconds.items()} if total else {}
        self.seconds.clear()
        return shares


class ObservedRank(Rank):
    """A rank that books why its queue's head waits: `kv`, `cap`, `both`, `budget` (of tokens in a step), `paused`."""

    def __init__(self, config: EngineConfig, rng: random.Random) -> None:
        super().__init__(config, rng)
        self._book = Book()
        self._why = ""
        self._work_ratio = 0.0
        self._present = False
        self._counted = (0.0, 0.0)

    def shares(self, now: float) -> Mapping[str, float]:
        """Shares of the time since the last call, and how many requests were `preempted` and `started` in it.

        The rank is settled up to `now`.
        """
        self._close(now)
        counted = float(self.stats.counters["preemptions"]), float(self.stats.histograms["ttft"].count)
        preempted, started = (after - before for after, before in zip(counted, self._counted, strict=True))
        self._counted = counted
        return {**self._book.read(), "preempted": preempted, "started": started}

    def start(self, now: float) -> None:
        """The rank came to be at `now`."""
        self._book.since = now

    def abort_all(self, t: float) -> list[Request]:
        """As the rank does; then nothing is left to wait."""
        ended = super().abort_all(t)
        self._close(t)
        self._why, self._work_ratio, self._present = "", 0.0, False
        return ended

    def _close(self, now: float) -> None:
        self._book.close(now, self._why, self._work_ratio, present=self._present)

    def _schedule(self, now: float) -> None:
        self._close(now)
        preempted, self._work_ratio = self.stats.counters["preemptions"], 0.0
        super()._schedule(now)
        self._present = bool(self.running or self.waiting)
        self._why = self._blocked_by(preempted=self.stats.counters["preemptions"] > preempted)

    def _step_time(self, chunks: list[tuple[Request, int]]) -> StepTime:
        time, cost, batch = super()._step_time(chunks), self.config.cost, self._decoding.size
        if isinstance(cost, LinearCost):
            full = time.busy
        else:
            host = cost.host_seconds + cost.host_seconds_per_sequence * batch
            full = max(time.busy, host) + cost.overhead_seconds
        self._work_ratio = max(0.0, 1.0 - cost.time(StepWork(0, 0)).seconds / full)
        return time

    def _blocked_by(self, *, preempted: bool) -> str:
        if not self.waiting:
            return ""
        if self.paused:
            return "paused"
        if preempted:
            return "kv"
        head = self.waiting[0]
        hit = self._hit_tokens(head)
        first = min(head.tokens - hit, self.config.max_num_batched_tokens)
        fits = self._blocks_to_take(head, head.tokens if self.config.reserve_full_prompt else hit + first)
        if len(self.running) >= self.config.max_num_seqs:
            return "both" if fits > self.pool.free else "cap"
        return "kv" if fits > self.pool.free else "budget"


class ObservedServer(SimulatedServer):
    """A simulated server whose ranks and front end are observed."""

    rank_type = ObservedRank

    def observe(self, now: float) -> list[Mapping[str, float]]:
        """Of every rank: the shares of the time since the last call, and `behind` (1 while the front end is)."""
        self.advance(now)
        clock = now - self.start
        behind = self._frontend.behind_seconds(clock) > BEHIND_SECONDS
        return [{**rank.shares(clock), "behind": float(behind)} for rank in self._observed()]

    def _observed(self) -> list[ObservedRank]:
        return [rank for rank in self.ranks if isinstance(rank, ObservedRank)]

    def _boot(self, t: float) -> None:
        super()._boot(t)
        for rank in self._observed():
            rank.start(t)


def observed(scenario: Scenario, seed: int) -> ObservedServer:
    """The scenario on an observed server."""
    return ObservedServer(scenario, seed)


def accepted_series(shares: Sequence[Mapping[str, float]]) -> list[Accepted]:
    """What may be said in each second of one rank, from the shares of every second."""
    means = {
        name: _around([share.get(name, 0.0) for share in shares], SMOOTHING_SECONDS)
        for name in ("kv", "cap", "both", "budget", "paused", "work", "behind", "present")
    }
    nearby = {
        name: _around([share.get(name, 0.0) for share in shares], NEARBY_SECONDS)
        for name in ("present", "preempted", "started")
    }
    return [
        accepted(
            {name: values[second] for name, values in means.items()},
            {name: values[second] for name, values in nearby.items()},
        )
        for second in range(len(shares))
    ]


def accepted(share: Mapping[str, float], nearby: Mapping[str, float]) -> Accepted:
    """The causes that are true, or may be said, at these shares of the time.

    Order: stuck, idle, KV, cap, compute, host, healthy. `nearby` is of a longer time: the share with any request
    `present`, and requests `preempted` and `started` a second.
    """
    if share["paused"] >= CLEAR_SHARE:
        return frozenset({"stuck"})
    if share["paused"] > 0:
        return frozenset({"stuck", "idle", "healthy", "unknown"})
    if nearby["present"] <= 0:
        return frozenset({"host_bound", "idle"} if share["behind"] > SLIGHT_SHARE else {"idle"})
    clear, possible = _queue_causes(share)
    if nearby["preempted"] > PREEMPTED_RATIO * nearby["started"]:
        possible.add("kv_cache_pressure")
    if clear:
        saturated = {"compute_bound"} if "concurrency_bound" in clear and share["work"] >= SATURATED_SHARE else set()
        return frozenset(clear | saturated | (possible & {"kv_cache_pressure", "concurrency_bound"}))
    clear, maybe = _load_causes(share)
    if not clear:
        clear = {"healthy"} if share["present"] > 0 else {"healthy", "idle"}
    return frozenset(clear | maybe | possible)


def _queue_causes(share: Mapping[str, float]) -> tuple[set[str], set[str]]:
    clear, possible = set(), set()
    for cause, name in (("kv_cache_pressure", "kv"), ("concurrency_bound", "cap")):
        if share[name] >= CLEAR_SHARE:
            clear.add(cause)
        elif share[name] + share["both"] > SLIGHT_SHARE:
            possible.add(cause)
    return clear, possible


def _load_causes(share: Mapping[str, float]) -> tuple[set[str], set[str]]:
    clear, maybe = set(), set()
    if share["work"] >= SATURATED_SHARE or share["budget"] >= CLEAR_SHARE:
        clear.add("compute_bound")
    elif share["work"] > UNSATURATED_SHARE or share["budget"] > SLIGHT_SHARE:
        maybe.add("compute_bound")
    if share["behind"] >= CLEAR_SHARE:
        clear.add("host_bound")
    elif share["behind"] > SLIGHT_SHARE:
        maybe.add("host_bound")
    return clear, maybe


def _around(values: Sequence[float], seconds: int) -> list[float]:
    """Mean over `seconds` before and after each value, as far as there are any."""
    sums = [0.0, *accumulate(values)]
    spans = [(max(0, index - seconds), min(len(values), index + seconds + 1)) for index in range(len(values))]
    # Running sums leave rounding behind where every value was 0.
    return [max(0.0, round((sums[end] - sums[begin]) / (end - begin), 9)) for begin, end in spans]
