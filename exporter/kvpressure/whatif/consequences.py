"""Consequences of changes: an engine as it is beside what it would be, with the range of what is not known of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from kvpressure.model.expected import Expected, Shift
from kvpressure.model.limits import Limits
from kvpressure.model.observed import Observed
from kvpressure.whatif.calibrate import Known, UnknownError, known
from kvpressure.whatif.cures import Cure, State, applied
from kvpressure.whatif.run import Outcome, simulate

LIMIT_FACTOR: Final = 2.0
"""An answer that takes more than so many times the healthy p95 came too late."""
ROOM_FOR_ALL_FACTOR: Final = 100.0
LEAST_GAIN: Final = 0.05
"""A change that is not expected to do so much is not worth a restart, nor a refusal."""
MOST_LOSS: Final = 0.02
OTHERWISE: Final[tuple[dict[str, float], ...]] = ({"spread": 0.0}, {"per_sequence": 0.3}, {"alike": 1.0})
"""What is not known of an engine, at its other end: lengths all alike in their bucket; steps of which a third grows
with the batch, which shows only once that is another; and long answers that are those to long prompts."""


@dataclass(frozen=True, slots=True)
class Gain:
    """How much more an engine would do: `worth` counts answers, late ones for less, `goodput` those in time.

    `sure` is the least `worth` over all engines that would show the same page.
    """

    worth: float
    goodput: float
    sure: float

    @property
    def helps(self) -> bool:
        """Whether it is worth doing, whatever the engine is of those that it may be."""
        return self.sure >= LEAST_GAIN and self.goodput >= -MOST_LOSS


class Model:
    """One engine as it can be simulated, and what was simulated of it already.

    `limit_seconds` is what an answer may take, twice the healthy p95. `others` are engines that would show the same
    page.
    """

    def __init__(self, known: Known, limit_seconds: float, others: Sequence[Model] = ()) -> None:
        self.known, self.limit_seconds = known, limit_seconds
        self._others = others
        self._runs: dict[tuple[object, ...], Outcome | None] = {}

    @property
    def state(self) -> State:
        """As it is."""
        return self.known.server, self.known.demand

    def outcome(self, state: State) -> Outcome | None:
        """What clients get, simulated once of each state."""
        server, demand = state
        key = (server, demand.clients, demand.rate)
        if key not in self._runs:
            self._runs[key] = simulate(server, demand, self.limit_seconds)
        return self._runs[key]

    def gain(self, before: Sequence[Cure], cure: Cure) -> Gain | None:
        """What a change is worth after others; None where nobody would be answered."""
        pair = _pair(self, before, [cure])
        if pair is None:
            return None
        first, second = pair
        worth = _more(pair, cure)
        goodput = (cure.by * second.goodput - first.goodput) / max(first.goodput, LEAST_GAIN * first.worth)
        if worth < LEAST_GAIN:
            return Gain(worth, goodput, worth)
        others = (_pair(other, before, [cure]) for other in self._others)
        return Gain(worth, goodput, min(worth, *(_more(one, cure) for one in others if one is not None), worth))

    def expected(self, before: Sequence[Cure], cures: Sequence[Cure]) -> Expected | None:
        """What `cures` do once those of `before` are in force; None where nobody would be answered."""
        nominal = _pair(self, before, cures)
        if nominal is None:
            return None
        others = (_pair(other, before, cures) for other in self._others)
        pairs = [nominal, *(pair for pair in others if pair is not None)]
        first, second = math.prod(cure.by for cure in before), math.prod(cure.by for cure in (*before, *cures))
        measured = self.known.measured.tokens_per_second / self._now.tokens_per_second

        def shift(read: Callable[[Outcome], float], *, each: bool = False) -> Shift:
            after = [read(pair[1]) * (1 if each else second) for pair in pairs]
            return Shift(read(nominal[0]) * (1 if each else first), after[0], min(after), max(after))

        return Expected(
            tokens_per_second=shift(lambda one: one.tokens_per_second * measured),
            goodput=shift(lambda one: one.goodput),
            latency_p95=shift(lambda one: one.latency_p95, each=True),
            waiting=shift(lambda one: one.waiting),
            refused_ratio=nominal[1].refused_ratio,
            shortened_ratio=nominal[1].shortened_ratio,
            limit_seconds=self.limit_seconds,
        )

    @cached_property
    def _now(self) -> Outcome:
        now = self.outcome(self.state)
        if now is None:
            raise UnknownError("the simulation completes no request")
        return now


def _pair(model: Model, before: Sequence[Cure], cures: Sequence[Cure]) -> tuple[Outcome, Outcome] | None:
    start = applied(model.state, before)
    first, second = model.outcome(start), model.outcome(applied(start, cures))
    return None if first is None or second is None else (first, second)


def _more(pair: tuple[Outcome, Outcome], cure: Cure) -> float:
    first, second = pair
    return cure.by * second.worth / first.worth - 1 if first.worth else 0.0


def model_of(observed: Observed | None, limits: Limits) -> Model:
    """The engine as it can be simulated. Raises UnknownError."""
    found = known(observed, limits)
    # Its own healthy p95 where it is known, else what those that run would take if they ran alone.
    limit = LIMIT_FACTOR * ((observed.healthy_seconds if observed else None) or _alone(found))
    others = []
    for otherwise in OTHERWISE:
        try:
            others.append(Model(known(observed, limits, **otherwise), limit))
        except UnknownError:
            continue
    return Model(found, limit, others)


def _alone(known: Known) -> float:
    """p95 with as many at once as run now, and room for all."""
    server, demand = known.server, known.demand
    held = max(1, round(known.measured.running))
    alone = replace(server, pool_tokens=ROOM_FOR_ALL_FACTOR * server.pool_tokens, max_num_seqs=math.inf)
    outcome = simulate(alone, replace(demand, clients=held, rate=0.0, queue=0))
    if outcome is None:
        raise UnknownError("the simulation completes no request")
    return outcome.latency_p95
