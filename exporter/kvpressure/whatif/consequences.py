"""Consequences of changes: an engine as it is beside what it would be, with the range of what is not known of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.expected import Expected, Shift
from kvpressure.model.limits import Limits
from kvpressure.model.observed import Observed
from kvpressure.whatif.apart import simulated
from kvpressure.whatif.calibrate import Known, UnknownError, known
from kvpressure.whatif.cures import Cure, State, applied
from kvpressure.whatif.described import Traffic, under, within_caps
from kvpressure.whatif.figures import Figures, Span
from kvpressure.whatif.run import Outcome, simulate

ROOM_FOR_ALL_FACTOR: Final = 100.0
OTHERWISE: Final[tuple[dict[str, float], ...]] = ({"spread": 0.0}, {"per_sequence": 0.3}, {"alike": 1.0})
"""What is not known of an engine, at its other end: lengths all alike in their bucket; steps of which a third grows
with the batch, which shows only once that is another; and long answers that are those to long prompts."""


@dataclass(frozen=True, slots=True)
class Gain:
    """How much more an engine would do: `worth` counts answers, late ones for less, `goodput` those in time.

    `sure` is the least `worth` over all engines that would show the same page; `helps` whether the change is worth
    making whatever the engine is of those that it may be.
    """

    worth: float
    goodput: float
    sure: float
    helps: bool


class Model:
    """One engine as it can be simulated, and what was simulated of it already.

    `limit_seconds` is what an answer may take. `others` are engines that would show the same page.
    """

    def __init__(
        self, known: Known, limit_seconds: float, thresholds: Thresholds, others: Sequence[Model] = ()
    ) -> None:
        self.known, self.limit_seconds, self.thresholds = known, limit_seconds, thresholds
        self._others = others
        self._runs: dict[tuple[object, ...], Outcome | None] = {}

    @property
    def state(self) -> State:
        """As it is."""
        return self.known.server, self.known.demand

    def outcome(self, state: State) -> Outcome | None:
        """What clients get, simulated once of each state."""
        server, demand = state
        key = (server, demand.clients, demand.rate, demand.apart)
        if key not in self._runs:
            self._runs[key] = simulated(server, demand, self.limit_seconds)
        return self._runs[key]

    def outcomes(self, cures: Sequence[Cure]) -> list[Outcome]:
        """What clients get with `cures`, of each engine that would show the same page."""
        found = [model.outcome(applied(model.state, cures)) for model in (self, *self._others)]
        return [outcome for outcome in found if outcome is not None]

    def gain(self, before: Sequence[Cure], cure: Cure) -> Gain | None:
        """What a change is worth after others; None where nobody would be answered."""
        pair = _pair(self, before, [cure])
        if pair is None:
            return None
        first, second = pair
        thresholds, worth = self.thresholds, _more(pair, cure)
        least = thresholds.advice_at_best_gain_min_ratio if cure.at_best else thresholds.advice_gain_min_ratio
        goodput = (cure.by * second.goodput - first.goodput) / max(first.goodput, least * first.worth)
        sure = worth
        if worth >= least:
            others = (_pair(other, before, [cure]) for other in self._others)
            sure = min(worth, *(_more(one, cure) for one in others if one is not None), worth)
        helps = sure >= least and goodput >= -thresholds.advice_goodput_loss_max_ratio
        return Gain(worth, goodput, sure, helps)

    def figures(self, cures: Sequence[Cure]) -> Figures | None:
        """What the engine does with `cures`, of all servers there are then; None where nobody would be answered."""
        nominal = self.outcome(applied(self.state, cures))
        if nominal is None:
            return None
        others = (other.outcome(applied(other.state, cures)) for other in self._others)
        outcomes = [nominal, *(outcome for outcome in others if outcome is not None)]
        by = math.prod(cure.by for cure in cures)

        def span(read: Callable[[Outcome], float], factor: float = 1.0) -> Span:
            values = [factor * read(one) for one in outcomes]
            return Span(values[0], min(values), max(values))

        return Figures(
            tokens_per_second=span(lambda one: one.tokens_per_second, by * self.tokens_factor),
            goodput=span(lambda one: one.goodput, by),
            latency_p95=span(lambda one: one.latency_p95),
            waiting=span(lambda one: one.waiting, by),
            refused_ratio=self._refused(span(lambda one: one.refused_ratio), cures),
            shortened_ratio=span(lambda one: one.shortened_ratio),
        )

    def _refused(self, simulated: Span, cures: Sequence[Cure]) -> Span:
        """A cap between the bounds of a bucket may hit all that lie in it, or none."""
        cap = applied(self.state, cures)[0].cap_prompt
        if math.isinf(cap):
            return simulated
        least, most = self.known.prompts.above(cap)
        return Span(simulated.value, min(simulated.low, least), max(simulated.high, most))

    def expected(self, before: Sequence[Cure], cures: Sequence[Cure]) -> Expected | None:
        """What `cures` do once those of `before` are in force; None where nobody would be answered."""
        first, second = self.figures(before), self.figures([*before, *cures])
        if first is None or second is None:
            return None

        def shift(read: Callable[[Figures], Span]) -> Shift:
            after = read(second)
            return Shift(read(first).value, after.value, after.low, after.high)

        return Expected(
            tokens_per_second=shift(lambda one: one.tokens_per_second),
            goodput=shift(lambda one: one.goodput),
            latency_p95=shift(lambda one: one.latency_p95),
            waiting=shift(lambda one: one.waiting),
            refused_ratio=second.refused_ratio.value,
            shortened_ratio=second.shortened_ratio.value,
            limit_seconds=self.limit_seconds,
            at_best=any(cure.at_best for cure in cures),
        )

    @cached_property
    def tokens_factor(self) -> float:
        """What the engine gets done over what the simulation of it does, which is about 1."""
        now = self.outcome(self.state)
        if now is None:
            raise UnknownError("the simulation completes no request")
        return self.known.measured.tokens_per_second / now.tokens_per_second


def _pair(model: Model, before: Sequence[Cure], cures: Sequence[Cure]) -> tuple[Outcome, Outcome] | None:
    start = applied(model.state, before)
    first, second = model.outcome(start), model.outcome(applied(start, cures))
    return None if first is None or second is None else (first, second)


def _more(pair: tuple[Outcome, Outcome], cure: Cure) -> float:
    first, second = pair
    return cure.by * second.worth / first.worth - 1 if first.worth else 0.0


def model_of(
    observed: Observed | None,
    limits: Limits,
    thresholds: Thresholds,
    *,
    limit_seconds: float | None = None,
    traffic: Traffic | None = None,
    held: float | None = None,
    growing: float | None = None,
) -> Model:
    """The engine as it can be simulated, under other `traffic` than its own where some is given.

    `held` is as for `calibrate.known`: how many run at once where requests wait for something else than the pool;
    `growing` is the share of a step's time that grows with the batch, where that is known better than from its polls.
    Without `limit_seconds` an answer may take a multiple of the healthy p95. Raises UnknownError.
    """
    found = known(observed, limits, thresholds, held=held, per_sequence=growing)
    if limit_seconds is None and traffic is None and observed is not None and observed.healthy_seconds is not None:
        limit_seconds = thresholds.advice_late_min_factor * observed.healthy_seconds
    others, share = [], {} if growing is None else {"per_sequence": growing}
    for otherwise in OTHERWISE:
        try:
            others.append(known(observed, limits, thresholds, held=held, **share | otherwise))
        except UnknownError:
            continue
    if traffic is not None:
        others = [one for other in (found, *others) for one in under(within_caps(other.server, limits), traffic)]
        found, *others = others
    return modelled(found, others, thresholds, limit_seconds)


def modelled(
    found: Known, others: Iterable[Known], thresholds: Thresholds, limit_seconds: float | None = None
) -> Model:
    """An engine, and `others` that it may be as well. Raises UnknownError.

    Without `limit_seconds` an answer may take a multiple of what it takes with room for all that run.
    """
    limit = limit_seconds or thresholds.advice_late_min_factor * _alone(found)
    return Model(found, limit, thresholds, [Model(other, limit, thresholds) for other in others])


def _alone(known: Known) -> float:
    """p95 with as many at once as run now, and room for all."""
    server, demand = known.server, known.demand
    held = max(1, round(known.measured.running))
    alone = replace(server, pool_tokens=ROOM_FOR_ALL_FACTOR * server.pool_tokens, max_num_seqs=math.inf)
    outcome = simulate(alone, replace(demand, clients=held, rate=0.0, queue=0))
    if outcome is None:
        raise UnknownError("the simulation completes no request")
    return outcome.latency_p95
