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
from kvpressure.model.action import DRAIN_MAX_SECONDS, Expected, Shift
from kvpressure.simulation.calibrate import Known
from kvpressure.simulation.config_changes import ConfigChange, State, applied, holds
from kvpressure.simulation.length_routing import simulated
from kvpressure.simulation.outcome import Outcome
from kvpressure.simulation.returning import QUESTION, Returning
from kvpressure.simulation.step_table import CardSteps
from kvpressure.simulation.steps import UnknownError

COVERED_DEVIATIONS: Final = 1.645
"""On either side of what is likeliest: in nine of ten cases the truth lies between."""

WAITING_FACTOR: Final = 1.5
"""Clients, for each request that a server holds, with which some always wait."""
TOKENS_ERROR_RATIO: Final = 0.045
LATENCY_ERROR_RATIO: Final = 0.05
"""Standard deviation of what is simulated of a change, of one engine that is known: in the scheduler lab half of the
changes came out within 3 % and 5 %, and `bench/advice/results.json` has them all."""
HELD_UP_MIN_FACTOR: Final = 1.1
"""With less, the simulated steps are off by as much."""
HELD_UP_MAX_FACTOR: Final = 1.4
"""With more, the steps that are counted are not those of these requests."""
HELD_UP: Final = "why some of the requests that run get no token in a step"
PAUSES: Final = "how long sessions pause is not known: the range holds even and uneven pauses"
RETURNS: Final = "whether prompts come back, and after what pause, is not known: the range holds both"
CUT: Final = "{0.text} lie in one bucket of their histogram, and the cap inside it"


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
        self._runs: dict[State, Outcome | None] = {}

    @property
    def state(self) -> State:
        """As it is."""
        return self.known.server, self.known.demand

    def outcome(self, state: State) -> Outcome | None:
        """Return the outcome of a state, simulated once; again with shorter steps where fewer requests are held up."""
        then, factor, now = self._simulated(state), self._held_up_factor, self._simulated(self.state)
        if then is None or factor == 1.0 or now is None or not now.preempted_ratio:
            return then
        # Where requests are preempted, as much is left of what holds them up as of that.
        left = min(1.0, then.preempted_ratio / now.preempted_ratio)
        if left == 1.0:
            return then
        server, demand = state
        steps = server.steps.scaled((1.0 + (factor - 1.0) * left) / factor)
        return self._simulated((replace(server, steps=steps), demand))

    def _simulated(self, state: State) -> Outcome | None:
        server, demand = state
        if state not in self._runs:
            begun, measured = self.known.simulation, self.known.measured_hits
            if begun is not None and begun.server is server and begun.demand is demand:
                outcome = begun.outcome(self.limit_seconds, self._answers)
            else:
                outcome = simulated(server, demand, self.limit_seconds, self._answers)
            self._runs[state] = outcome if outcome is None or measured is None else measured.corrected(outcome, *state)
        return self._runs[state]

    def outcomes(self, changes: Sequence[ConfigChange]) -> Iterator[Outcome]:
        """Yield the outcome with `changes` of each engine that would show the same page, simulated as it is taken."""
        for model in (self, *self._others):
            outcome = model.outcome(applied(model.state, changes))
            if outcome is not None:
                yield outcome

    def answers_alike(self, other: Model) -> bool:
        """Return whether answers of another engine are as long on average: those that ended are what the page counts.

        Where clients keep to their lengths, those with short ones may take all the turns.
        """
        ours, theirs = self.outcome(self.state), other.outcome(other.state)
        if ours is None or theirs is None:
            return False
        mean, other_mean = (outcome.tokens_per_second / outcome.answers_per_second for outcome in (ours, theirs))
        return abs(other_mean / mean - 1) <= self.thresholds.advice.simulated_error_max_ratio

    def gain(self, before: Sequence[ConfigChange], change: ConfigChange, *, surely: bool = True) -> Gain | None:
        """Return the gain of a change made after others; None where no request would be answered.

        Without `surely` it helps where it helps the likeliest engine; the others are not simulated.
        """
        pair = _pair(self, before, [change])
        if pair is None:
            return None
        first, second = pair
        thresholds, more = self.thresholds, _more(pair, change.by)
        least = thresholds.advice.at_best_gain_min_ratio if change.at_best else thresholds.advice.gain_min_ratio
        goodput = (change.by * second.goodput - first.goodput) / max(first.goodput, least * first.weighted_goodput)
        helps = more >= least and goodput >= -thresholds.advice.goodput_loss_max_ratio
        pairs = (_pair(other, before, [change]) for other in (self._others if surely and helps else ()))
        return Gain(more, helps and all(_more(other, change.by) >= least for other in pairs if other is not None))

    def figures(self, changes: Sequence[ConfigChange], *, ranged: bool = True) -> Figures | None:
        """Return the figures with `changes`, over all servers; None where no request would be answered.

        Without `ranged` they are the likeliest alone, and no other engine is simulated.
        """
        likeliest = self.outcome(applied(self.state, changes))
        if likeliest is None:
            return None
        alternatives = self._alternatives(changes) if ranged else [("", likeliest)]
        outcomes = [outcome for _, outcome in alternatives]
        by = math.prod(change.by for change in changes)

        def span(read: Callable[[Outcome], float], factor: float = 1.0) -> Span:
            values = [factor * read(outcome) for outcome in outcomes]
            return Span(values[0], min(values), max(values))

        simulated = bool(changes)

        def with_all(read: Callable[[Outcome], float], usual: float, error: float, factor: float = 1.0) -> Span:
            value, *others = (factor * read(outcome) for question, outcome in alternatives if question != QUESTION)
            if not ranged:
                return Span(value, value, value)
            back = next((factor * read(outcome) for question, outcome in alternatives if question == QUESTION), None)
            window = self.known.measured.tokens_deviation_ratio
            return _with_all(value, [*others, usual * value], math.hypot(window, simulated * error), back)

        refused, cap = span(lambda outcome: outcome.refused_ratio), applied(self.state, changes)[0].cap_prompt
        if math.isfinite(cap):  # between two bounds of a bucket it may hit all requests in it, or none
            least, most = self.known.prompts.above(cap)
            refused = Span(refused.value, min(refused.low, least), max(refused.high, most))
        usual = self.known.measured.usual_ratio
        error = math.hypot(TOKENS_ERROR_RATIO, self.known.demand.rate_deviation_ratio)
        tokens = with_all(lambda outcome: outcome.tokens_per_second, usual, error, by * self.tokens_factor)
        return Figures(
            tokens_per_second=tokens,
            goodput=span(lambda outcome: outcome.goodput, by),
            latency_p95=with_all(lambda outcome: outcome.latency_p95, 1 / usual, LATENCY_ERROR_RATIO),
            waiting=span(lambda outcome: outcome.waiting, by),
            refused_ratio=refused,
            shortened_ratio=span(lambda outcome: outcome.shortened_ratio),
            hit_ratio=span(lambda outcome: outcome.hit_ratio or 0.0) if self._has_sessions else None,
            first_token_seconds=span(lambda outcome: outcome.first_token_seconds or 0.0)
            if self._has_sessions or self.on_card
            else None,
            doubt=self._doubt(cap, tokens, alternatives),
        )

    def _alternatives(self, changes: Sequence[ConfigChange]) -> list[tuple[str, Outcome]]:
        """Return the outcomes, the likeliest first, and which assumption differs in each, in words."""
        now, (server, demand) = self.outcome(self.state), applied(self.state, changes)
        then = self.outcome((server, demand))
        made = [
            ("", then),
            *((other.known.question, other.beside(self.tokens_factor, changes)) for other in self._others),
        ]
        if changes and self._returning is not None and now is not None and then is not None:
            made.append((QUESTION, self._returning.beside(now, then, changes)))
        as_now, factor = self._simulated((server, demand)), self._held_up_factor
        if changes and as_now is not None and factor > 1:
            tokens, latency = factor * as_now.tokens_per_second, as_now.latency_p95 / factor
            none = replace(as_now, tokens_per_second=tokens, latency_p95=latency)
            made += [(HELD_UP, as_now), (HELD_UP, none)]
        cut = self.known.prompts.around(server.cap_prompt)
        # All that a bucket has may lie on either side of the cap.
        if cut is not None:
            ends = ((replace(server, cap_prompt=bound), demand) for bound in (cut.low, cut.high))
            made += [(CUT.format(cut), self.outcome(end)) for end in ends]
        return [(question, outcome) for question, outcome in made if outcome is not None]

    @cached_property
    def _held_up_factor(self) -> float:
        """Return how many times as long as the engine's the steps of the simulation are, at least 1.

        Where requests that run wait in the batch for what is not simulated, each gets as many tokens of longer steps.
        """
        now, measured = self._simulated(self.state), self.known.measured.steps_per_second
        if now is None or not measured or not now.steps_per_second:
            return 1.0
        factor = measured / now.steps_per_second
        # Ranks in lockstep count steps in which they have nothing to do.
        return factor if HELD_UP_MIN_FACTOR <= factor < HELD_UP_MAX_FACTOR else 1.0

    def beside(self, factor: float, changes: Sequence[ConfigChange]) -> Outcome | None:
        """Return what changes make of this engine, set beside one whose tokens a second are multiplied by `factor`."""
        then = self.outcome(applied(self.state, changes))
        if then is None or self.outcome(self.state) is None:
            return None
        return replace(then, tokens_per_second=then.tokens_per_second * self.tokens_factor / factor)

    def _doubt(self, cap: float, tokens: Span, alternatives: Sequence[tuple[str, Outcome]]) -> str:
        """Return in words that the cap may refuse all prompts of a bucket or none, else what leaves the tokens open."""
        cut = self.known.prompts.around(cap)
        if cut is not None and cut.share > self.thresholds.advice.refused_max_ratio:
            return CUT.format(cut)
        if tokens.high <= self.thresholds.advice.range_max_factor * tokens.low:
            return ""
        first = alternatives[0][1].tokens_per_second
        question, other = max(alternatives, key=lambda one: abs(math.log(one[1].tokens_per_second / first)))
        apart = abs(math.log(other.tokens_per_second / first))
        measured = self.known.measured
        window = math.log1p(COVERED_DEVIATIONS * measured.tokens_deviation_ratio)
        window = max(window, abs(math.log(measured.usual_ratio)))
        return question if apart > window else "what this engine does in a minute differs too much from the next"

    @property
    def on_card(self) -> bool:
        """Whether step times are those of a card's table, which give the time to the first token as well."""
        return isinstance(self.known.server.steps, CardSteps)

    @property
    def _has_sessions(self) -> bool:
        return self.known.demand.sessions is not None

    def expected(
        self, before: Sequence[ConfigChange], changes: Sequence[ConfigChange], *, ranged: bool = True
    ) -> Expected | None:
        """Return what `changes` do once those of `before` are in force; None where no request would be answered.

        `ranged` is as for `figures`.
        """
        first, second = (self.figures(some, ranged=ranged) for some in (before, [*before, *changes]))
        if first is None or second is None:
            return None
        pair, servers = _pair(self, before, changes), math.prod(change.by for change in changes)
        return Expected(
            tokens_per_second=_shift(first.tokens_per_second, second.tokens_per_second),
            goodput=_shift(first.goodput, second.goodput),
            latency_p95=_shift(first.latency_p95, second.latency_p95),
            waiting=_shift(first.waiting, second.waiting),
            refused_ratio=second.refused_ratio.value,
            shortened_ratio=second.shortened_ratio.value,
            limit_seconds=self.limit_seconds,
            gain_ratio=0.0 if pair is None else _more(pair, servers),
            servers=servers,
            at_best=any(change.at_best for change in changes),
            hit_ratio=_shift_if_known(first.hit_ratio, second.hit_ratio),
            first_token_seconds=_shift_if_known(first.first_token_seconds, second.first_token_seconds),
            in_time=None if (share := self._in_time(second)) is None else (self._in_time(first) or 0.0, share),
            doubt=second.doubt,
            not_known=self.not_known if ranged else "",
        )

    @property
    def not_known(self) -> str:
        """Return in words what of sessions no page tells and ranges hold, "" where there are none."""
        if self._has_sessions:
            return PAUSES if self._others else ""
        return RETURNS if self._returning is not None else ""

    def drain_seconds(self, changes: Sequence[ConfigChange]) -> float | None:
        """Return how long after `changes` the queue of now is served, at most `DRAIN_MAX_SECONDS`; None without one.

        That is, where it does not grow without them.
        """
        if not self.queue_grows:
            return None
        spare = self.served_per_second(changes) - self.arriving_per_second(changes)
        return min(DRAIN_MAX_SECONDS, self.known.measured.waiting / spare) if spare > 0 else DRAIN_MAX_SECONDS

    @property
    def queue_grows(self) -> bool:
        """Whether requests come at a rate that is more than the engine serves."""
        return not math.isinf(self.known.demand.counted_seconds)

    def arriving_per_second(self, changes: Sequence[ConfigChange] = ()) -> float:
        """Return the requests at a rate that come each second and are not refused at the edge."""
        server, demand = applied(self.state, changes)
        refused = sum(shape.prompt > server.longest_prompt for shape in demand.requests) / len(demand.requests)
        return (1 - refused) * self.known.demand.rate

    def served_per_second(self, changes: Sequence[ConfigChange] = ()) -> float:
        """Return the answers a second of all servers while requests wait, by the speed that was measured."""
        if not changes and self.queue_grows:
            return self._answers_per_second(self.outcome(self.state))
        server, demand = applied(self.state, changes)
        clients = math.ceil(WAITING_FACTOR * min(holds((server, demand)), server.max_num_seqs)) + 1
        if demand.length_routing is not None:
            clients *= demand.length_routing.short + demand.length_routing.long
        full = replace(demand, clients=clients, rate=0.0, queue=0, mixed=True, busy_ratio=1.0)
        return math.prod(change.by for change in changes) * self._answers_per_second(self.outcome((server, full)))

    def _answers_per_second(self, outcome: Outcome | None) -> float:
        return 0.0 if outcome is None else self.tokens_factor * outcome.answers_per_second

    def _in_time(self, figures: Figures) -> float | None:
        """Return the share of the requests that are served in time; None where clients wait for their answers."""
        rate = self.known.demand.rate
        return min(1.0, figures.goodput.value / rate) if rate and not self.known.demand.clients else None

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


def _with_all(value: float, others: Iterable[float], deviation_ratio: float, back: float | None = None) -> Span:
    """Return a value above 0 and its range, where all that is not known may come together.

    Its ends are independent, and so is how far the window is from what the engine does: their squares add up. Where
    prompts may come back, which would make it `back`, nothing says how likely that is: the value lies between both.
    """
    steps = [math.log(other / value) for other in others if other > 0]
    if back:
        half = math.log(back / value) / 2
        value, steps = value * math.exp(half), [*steps, half, -half]
    window = math.log1p(COVERED_DEVIATIONS * deviation_ratio)
    down, up = (math.sqrt(sum(step * step for step in steps if step * sign > 0) + window * window) for sign in (-1, 1))
    return Span(value, value * math.exp(-down), value * math.exp(up))


def _pair(
    model: Model, before: Sequence[ConfigChange], changes: Sequence[ConfigChange]
) -> tuple[Outcome, Outcome] | None:
    """Return the outcomes without `changes` and with them; None where one has no answer."""
    start = applied(model.state, before)
    first, second = model.outcome(start), model.outcome(applied(start, changes))
    return None if first is None or second is None else (first, second)


def _more(pair: tuple[Outcome, Outcome], servers: int) -> float:
    first, second = pair
    return servers * second.weighted_goodput / first.weighted_goodput - 1 if first.weighted_goodput else 0.0
