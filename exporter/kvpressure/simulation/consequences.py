"""Consequences of changes: an engine as it is beside what it would be, with the range of what is not known of it.

Each change by itself, all of them together, and both under more and less load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.action import Expected, Shift
from kvpressure.model.limits import Limits
from kvpressure.model.view import Observed
from kvpressure.simulation.calibrate import Known, Open, known
from kvpressure.simulation.calibrate_sessions import THINK_RATIOS_OTHERWISE, known_sessions
from kvpressure.simulation.config_changes import ConfigChange, State, applied
from kvpressure.simulation.described import Traffic, under, within_caps
from kvpressure.simulation.length_routing import simulated
from kvpressure.simulation.outcome import Outcome
from kvpressure.simulation.priors import prior_otherwise
from kvpressure.simulation.returning import QUESTION, Returning, returning
from kvpressure.simulation.scheduler import COARSE_ANSWERS, COARSE_SESSION_ANSWERS, simulate
from kvpressure.simulation.step_table import CardSteps, StepTable
from kvpressure.simulation.steps import UnknownError

ROOM_FOR_ALL_FACTOR: Final = 100.0
COVERED_DEVIATIONS: Final = 1.645
"""On either side of what is likeliest: in nine of ten cases the truth lies between."""
OTHERWISE: Final = (
    Open(spread=0.0, tail=-COVERED_DEVIATIONS),
    Open(tail=COVERED_DEVIATIONS),
    Open(end=-COVERED_DEVIATIONS),
    Open(end=COVERED_DEVIATIONS),
    Open(alike=1.0),
    Open(other_clients=True),
)
"""What is not known of an engine, at its other end: lengths all alike in their bucket, and the longest ones as
short or as long as may be; what a larger batch takes, which
shows only once it is larger; long answers that are those to long prompts; and clients that keep to their lengths, or do
not."""

CUT: Final = "{0.text} lie in one bucket of their histogram, and the cap inside it"
LOADS: Final = (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
"""Times today's, for the curves."""


@dataclass(frozen=True, slots=True)
class Span:
    """The likeliest value, and between which ones it lies."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all servers together. `goodput` counts requests a second answered in full and in time.

    `latency_p95` is in seconds, `waiting` requests. `refused_ratio` and `shortened_ratio` are shares of the requests.
    """

    tokens_per_second: Span
    goodput: Span
    latency_p95: Span
    waiting: Span
    refused_ratio: Span
    shortened_ratio: Span
    hit_ratio: Span | None = None
    first_token_seconds: Span | None = None
    """Mean seconds from arrival to first token; as the hits, known where sessions are simulated."""
    doubt: str = ""
    """What leaves tokens a second open by more than `advice_range_max_factor`, in words."""


class Gain(NamedTuple):
    """How much more an engine would do, by `weighted_goodput`, in which late answers count for less.

    `helps` says whether the change is worth making on each of the engines that fit the page.
    """

    weighted_goodput: float
    helps: bool


class Model:
    """One engine as it can be simulated, and what was simulated of it already.

    `limit_seconds` is what an answer may take. `others` are engines that would show the same page; so is `returning`,
    whose clients come back, and by which nothing is chosen.
    """

    def __init__(
        self,
        known: Known,
        limit_seconds: float,
        thresholds: Thresholds,
        others: Sequence[Model] = (),
        returning: Returning | None = None,
        answers: int | None = None,
    ) -> None:
        self.known, self.limit_seconds, self.thresholds = known, limit_seconds, thresholds
        self._others, self._returning, self._answers = others, returning, answers
        self._runs: dict[tuple[object, ...], Outcome | None] = {}

    @property
    def state(self) -> State:
        """As it is."""
        return self.known.server, self.known.demand

    def outcome(self, state: State) -> Outcome | None:
        """Return the outcome of a state, simulated once."""
        server, demand = state
        key = (server, demand.clients, demand.busy_ratio, demand.rate, demand.length_routing, demand.sessions)
        if key not in self._runs:
            outcome, measured = simulated(server, demand, self.limit_seconds, self._answers), self.known.measured_hits
            self._runs[key] = outcome if outcome is None or measured is None else measured.corrected(outcome, *state)
        return self._runs[key]

    def outcomes(self, changes: Sequence[ConfigChange]) -> Iterator[Outcome]:
        """Yield the outcome with `changes` of each engine that would show the same page, simulated as it is taken."""
        for model in (self, *self._others):
            outcome = model.outcome(applied(model.state, changes))
            if outcome is not None:
                yield outcome

    def gain(self, before: Sequence[ConfigChange], change: ConfigChange, *, surely: bool = True) -> Gain | None:
        """Return the gain of a change made after others; None where no request would be answered.

        Without `surely` it helps where it helps the likeliest engine; the others are not simulated.
        """
        pair = _pair(self, before, change)
        if pair is None:
            return None
        first, second = pair
        thresholds, more = self.thresholds, _more(pair, change)
        least = thresholds.advice_at_best_gain_min_ratio if change.at_best else thresholds.advice_gain_min_ratio
        goodput = (change.by * second.goodput - first.goodput) / max(first.goodput, least * first.weighted_goodput)
        helps = more >= least and goodput >= -thresholds.advice_goodput_loss_max_ratio
        others = (_pair(other, before, change) for other in (self._others if surely and helps else ()))
        return Gain(more, helps and all(_more(one, change) >= least for one in others if one is not None))

    def figures(self, changes: Sequence[ConfigChange]) -> Figures | None:
        """Return the figures with `changes`, over all servers; None where no request would be answered."""
        if self.outcome(applied(self.state, changes)) is None:
            return None
        asked = self._alternatives(changes)
        outcomes = [outcome for _, outcome in asked]
        by = math.prod(change.by for change in changes)

        def span(read: Callable[[Outcome], float], factor: float = 1.0) -> Span:
            values = [factor * read(one) for one in outcomes]
            return Span(values[0], min(values), max(values))

        def with_all(read: Callable[[Outcome], float], usual: float, factor: float = 1.0) -> Span:
            value, *others = (factor * read(one) for one in outcomes)
            return _with_all(value, [*others, usual * value], self.known.measured.tokens_deviation_ratio)

        refused, cap = span(lambda one: one.refused_ratio), applied(self.state, changes)[0].cap_prompt
        if math.isfinite(cap):  # between two bounds of a bucket it may hit all requests in it, or none
            least, most = self.known.prompts.above(cap)
            refused = Span(refused.value, min(refused.low, least), max(refused.high, most))
        usual = self.known.measured.usual_ratio
        tokens = with_all(lambda one: one.tokens_per_second, usual, by * self.tokens_factor)
        return Figures(
            tokens_per_second=tokens,
            goodput=span(lambda one: one.goodput, by),
            latency_p95=with_all(lambda one: one.latency_p95, 1 / usual),
            waiting=span(lambda one: one.waiting, by),
            refused_ratio=refused,
            shortened_ratio=span(lambda one: one.shortened_ratio),
            hit_ratio=span(lambda one: one.hit_ratio or 0.0) if self._has_sessions else None,
            first_token_seconds=span(lambda one: one.first_token_seconds or 0.0)
            if self._has_sessions or self.on_card
            else None,
            doubt=self._cut_bucket(cap) or self._doubt(tokens, asked),
        )

    def _alternatives(self, changes: Sequence[ConfigChange]) -> list[tuple[str, Outcome]]:
        """Return what would come of it, the likeliest first, and what is taken otherwise in each, in words."""
        now, (server, demand) = self.outcome(self.state), applied(self.state, changes)
        then = self.outcome((server, demand))
        made = [("", then), *((one.known.question, one.beside(self.tokens_factor, changes)) for one in self._others)]
        if changes and self._returning is not None and now is not None and then is not None:
            made.append((QUESTION, self._returning.beside(now, then, changes)))
        cut = self.known.prompts.around(server.cap_prompt)
        # All that a bucket has may lie on either side of the cap.
        if cut is not None:
            ends = ((replace(server, cap_prompt=bound), demand) for bound in (cut.low, cut.high))
            made += [(CUT.format(cut), self.outcome(end)) for end in ends]
        return [(question, outcome) for question, outcome in made if outcome is not None]

    def beside(self, factor: float, changes: Sequence[ConfigChange]) -> Outcome | None:
        """Return what changes make of this engine, set beside one whose tokens a second are multiplied by `factor`."""
        then = self.outcome(applied(self.state, changes))
        if then is None or self.outcome(self.state) is None:
            return None
        return replace(then, tokens_per_second=then.tokens_per_second * self.tokens_factor / factor)

    def _cut_bucket(self, cap: float) -> str:
        """Return in words that the cap may refuse most prompts of a bucket or none, "" where these are few."""
        cut = self.known.prompts.around(cap)
        return "" if cut is None or cut.share <= self.thresholds.advice_refused_max_ratio else CUT.format(cut)

    def _doubt(self, tokens: Span, asked: Sequence[tuple[str, Outcome]]) -> str:
        if tokens.high <= self.thresholds.advice_range_max_factor * tokens.low:
            return ""
        first = asked[0][1].tokens_per_second
        question, other = max(asked, key=lambda one: abs(math.log(one[1].tokens_per_second / first)))
        apart = abs(math.log(other.tokens_per_second / first))
        measured = self.known.measured
        window = math.log1p(COVERED_DEVIATIONS * measured.tokens_deviation_ratio)
        window = max(window, abs(math.log(measured.usual_ratio)))
        return question if apart > window else "what this engine does in a minute differs too much from the next"

    @property
    def on_card(self) -> bool:
        """Whether step times are those of a card's table, which tell of first tokens as well."""
        return isinstance(self.known.server.steps, CardSteps)

    @property
    def _has_sessions(self) -> bool:
        return self.known.demand.sessions is not None

    def expected(self, before: Sequence[ConfigChange], changes: Sequence[ConfigChange]) -> Expected | None:
        """Return what `changes` do once those of `before` are in force; None where no request would be answered."""
        first, second = self.figures(before), self.figures([*before, *changes])
        if first is None or second is None:
            return None

        def shift(read: Callable[[Figures], Span]) -> Shift:
            return _shift(read(first), read(second))

        return Expected(
            tokens_per_second=shift(lambda one: one.tokens_per_second),
            goodput=shift(lambda one: one.goodput),
            latency_p95=shift(lambda one: one.latency_p95),
            waiting=shift(lambda one: one.waiting),
            refused_ratio=second.refused_ratio.value,
            shortened_ratio=second.shortened_ratio.value,
            limit_seconds=self.limit_seconds,
            gain_ratio=self._gain(before, changes),
            servers=math.prod(change.by for change in changes),
            at_best=any(change.at_best for change in changes),
            hit_ratio=_shift_if_known(first.hit_ratio, second.hit_ratio),
            first_token_seconds=_shift_if_known(first.first_token_seconds, second.first_token_seconds),
            doubt=second.doubt,
        )

    def _gain(self, before: Sequence[ConfigChange], changes: Sequence[ConfigChange]) -> float:
        now, then = (self.outcome(applied(self.state, some)) for some in (before, [*before, *changes]))
        if now is None or then is None or not now.weighted_goodput:
            return 0.0
        return math.prod(change.by for change in changes) * then.weighted_goodput / now.weighted_goodput - 1

    @cached_property
    def tokens_factor(self) -> float:
        """What the engine gets done over what the simulation of it does, which is about 1."""
        now = self.outcome(self.state)
        if now is None:
            raise UnknownError("the simulation completes no request")
        return self.known.measured.tokens_per_second / now.tokens_per_second


def _shift(before: Span, after: Span) -> Shift:
    return Shift(before.value, after.value, after.low, after.high)


def _shift_if_known(before: Span | None, after: Span | None) -> Shift | None:
    return None if before is None or after is None else _shift(before, after)


def _with_all(value: float, others: Iterable[float], deviation_ratio: float) -> Span:
    """Return a value above 0 and its range, where all that is not known may come together.

    Its ends are independent, and so is how far the window is from what the engine does: their squares add up.
    """
    steps = [math.log(other / value) for other in others if other > 0]
    window = math.log1p(COVERED_DEVIATIONS * deviation_ratio)
    down, up = (math.sqrt(sum(step * step for step in steps if step * sign > 0) + window * window) for sign in (-1, 1))
    return Span(value, value * math.exp(-down), value * math.exp(up))


def _pair(model: Model, before: Sequence[ConfigChange], change: ConfigChange) -> tuple[Outcome, Outcome] | None:
    start = applied(model.state, before)
    first, second = model.outcome(start), model.outcome(change.apply(start))
    return None if first is None or second is None else (first, second)


def _more(pair: tuple[Outcome, Outcome], change: ConfigChange) -> float:
    first, second = pair
    return change.by * second.weighted_goodput / first.weighted_goodput - 1 if first.weighted_goodput else 0.0


def model_of(
    observed: Observed | None,
    limits: Limits,
    thresholds: Thresholds,
    *,
    limit_seconds: float | None = None,
    traffic: Traffic | None = None,
    held: float | None = None,
    growing: float | None = None,
    card: StepTable | None = None,
) -> Model:
    """Return the model of an engine, under `traffic` instead of its own where given.

    `held` is as for `calibrate.known`: how many run at once where requests wait for something else than the pool;
    `growing` is the share of a step's time that grows with the batch, where that is known better than from its polls;
    with the table of its `card` and model nothing but how fast these are has to be told by polls.
    Without `limit_seconds` an answer may take a multiple of the healthy p95. Raises UnknownError.
    """
    found = known(observed, limits, thresholds, held=held, growing=growing, card=card)
    if limit_seconds is None and traffic is None and observed is not None and observed.healthy_seconds is not None:
        limit_seconds = thresholds.advice_late_min_factor * observed.healthy_seconds
    others = []
    dense = observed is None or prior_otherwise(observed.model_name) is None
    for taken in OTHERWISE if dense else (*OTHERWISE, Open(experts=True)):
        try:
            likely = None if taken.end else growing
            one = known(observed, limits, thresholds, taken, held=held, growing=likely, card=card, like=found)
            others.append(one)
        except UnknownError:
            continue
    if traffic is not None:
        others = [one for other in (found, *others) for one in under(within_caps(other.server, limits), traffic)]
        found, *others = others
        return modelled(found, others, thresholds, limit_seconds)
    back = None if held is not None else returning(found, observed, limits)
    return modelled(found, others, thresholds, limit_seconds, back, COARSE_ANSWERS)


def model_with_sessions(
    observed: Observed | None, limits: Limits, thresholds: Thresholds, *, limit_seconds: float | None = None
) -> Model:
    """Return the model of an engine whose sessions come back, and whose cache is finite. Raises UnknownError.

    Where only the page tells, other spreads of think times would show the same.
    """
    found, others = known_sessions(observed, limits, thresholds), []
    if observed is not None and limit_seconds is None and observed.healthy_seconds is not None:
        limit_seconds = thresholds.advice_late_min_factor * observed.healthy_seconds
    for ratio in () if observed is not None and observed.hits_by_pool else THINK_RATIOS_OTHERWISE:
        try:
            others.append(known_sessions(observed, limits, thresholds, think_ratio=ratio))
        except UnknownError:
            continue
    return modelled(found, others, thresholds, limit_seconds, answers=COARSE_SESSION_ANSWERS)


def modelled(
    found: Known,
    others: Iterable[Known],
    thresholds: Thresholds,
    limit_seconds: float | None = None,
    back: Returning | None = None,
    answers: int | None = None,
) -> Model:
    """Return the model of an engine, with `others` that fit the page as well. Raises UnknownError.

    Without `limit_seconds` an answer may take a multiple of what it takes with room for all that run. `answers` is as
    for `simulate`, of the others.
    """
    limit = limit_seconds or thresholds.advice_late_min_factor * _alone(found)
    return Model(found, limit, thresholds, [Model(other, limit, thresholds, answers=answers) for other in others], back)


def _alone(known: Known) -> float:
    """p95 with as many at once as run now, and room for all."""
    server, demand = known.server, known.demand
    held = max(1, round(known.measured.running))
    alone = replace(server, pool_tokens=ROOM_FOR_ALL_FACTOR * server.pool_tokens, max_num_seqs=math.inf)
    one = replace(demand, clients=held, rate=0.0, queue=0)
    outcome = simulate(alone, one, answers=COARSE_SESSION_ANSWERS if demand.sessions else None)
    if outcome is None:
        raise UnknownError("the simulation completes no request")
    return outcome.latency_p95


@dataclass(frozen=True, slots=True)
class Row:
    """Changes (none is today) and what the engine does with them; None where it would answer nobody."""

    changes: tuple[ConfigChange, ...]
    figures: Figures | None
    behind: bool = False
    """More requests arrive than are answered: queue and latencies are those of the simulated time, and keep growing."""


@dataclass(frozen=True, slots=True)
class Point:
    """Under a load of so many clients, or requests a second: tokens a second of all servers, and p95 in seconds."""

    load: float
    tokens_per_second: float
    latency_p95: float


def compared(model: Model, changes: Sequence[ConfigChange]) -> list[Row]:
    """Today, each change by itself where there are several, and all together."""
    alone = [(change,) for change in changes] if len(changes) > 1 else []
    together = [tuple(changes)] if changes else []
    return [row(model, changes) for changes in ((), *alone, *together)]


def row(model: Model, changes: Sequence[ConfigChange]) -> Row:
    """Return the figures of the engine with these changes."""
    state, behind = applied(model.state, changes), False
    demand, outcome = state[1], model.outcome(state)
    # Of few requests chance alone may answer fewer than come; those do not wait.
    if not demand.clients and outcome is not None and outcome.waiting >= 1:
        least = model.thresholds.advice_falling_behind_max_ratio
        behind = outcome.answers_per_second < least * demand.rate * (1 - outcome.refused_ratio)
    return Row(tuple(changes), model.figures(changes), behind)


def over_load(model: Model, changes: Sequence[ConfigChange]) -> list[Point]:
    """From a tenth of today's load to three times as much; loads under which nobody is answered are left out."""
    by = math.prod(change.by for change in changes)
    factor = model.tokens_factor
    server, demand = model.state
    found: dict[float, Point] = {}
    for times in LOADS:
        scaled = demand.times(times)
        outcome = model.outcome(applied((server, scaled), changes))
        load = float(scaled.clients or scaled.rate)
        if outcome is not None and load not in found:
            found[load] = Point(load, by * factor * outcome.tokens_per_second, outcome.latency_p95)
    return list(found.values())
