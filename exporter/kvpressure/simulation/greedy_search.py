"""Greedy search for the changes to make: one after the other, each simulated on the engine with those before it.

Where requests wait for another limit than the pool (`max_num_seqs`, the token budget, the GPU), that limit first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.action import Expected
from kvpressure.simulation import config_changes
from kvpressure.simulation.config_changes import ROUTE_BY_LENGTH, ConfigChange, State, applied, holds
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.server import RequestShape

MAX_LENGTH_ROUTING_BOUNDS: Final = 2
"""Bounds of prompt length that are tried for routing by length."""
CALM_MAX_WAITING: Final = 0.5
"""Mean number of waiting requests below which most polls see an empty queue, so that the pool is no limit."""
CALM_WAITING_RATIO: Final = 0.05
"""The same of many that run: requests that come by chance wait now and then."""
HOLD: Final = "hold"


@dataclass(frozen=True, slots=True)
class Step:
    """A change, and what it is expected to do by itself."""

    change: ConfigChange
    expected: Expected
    against: str = ""
    """What speaks against it though it gains, in words."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Changes to make, in order, and those that would not help, each judged by itself."""

    steps: tuple[Step, ...] = ()
    declined: tuple[Step, ...] = ()

    def step(self, key: str) -> Step | None:
        """Return the chosen change of a kind."""
        return next((step for step in self.steps if step.change.key == key), None)


class Rated(NamedTuple):
    """A change and what it gains, a share of the weighted goodput."""

    gain: float
    change: ConfigChange


def about_the_best(rated: Iterable[Rated], most: float, thresholds: Thresholds) -> Iterator[ConfigChange]:
    """Yield the changes that gain about as much as `most`, in their order."""
    enough = (1 + most) * (1 - thresholds.advice.gain_min_ratio)
    return (each.change for each in rated if 1 + each.gain >= enough)


@dataclass(slots=True)
class Search:
    """What was chosen of the changes of an engine, and the first that was tried of each kind."""

    model: Model
    chosen: list[ConfigChange] = field(default_factory=list)
    tried: dict[str, ConfigChange] = field(default_factory=dict)
    against: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> State:
        """The engine with what was chosen."""
        return applied(self.model.state, self.chosen)

    def add(self, changes: Iterable[ConfigChange]) -> bool:
        """Take the best of `changes` that helps; False where none does."""
        best = self.best(self.rated(changes))
        if best is None:
            return False
        self.chosen.append(best.change)
        return True

    def rated(self, changes: Iterable[ConfigChange]) -> list[Rated]:
        """Return those that help the likeliest engine, with their gain."""
        rateds = list[Rated]()
        for change in changes:
            gain = self.model.gain(self.chosen, change, surely=False)
            if gain is None:
                continue
            # Of each kind the first value that was tried is the one that would have been advised.
            self.tried.setdefault(change.key, change)
            if gain.helps:
                rateds.append(Rated(gain.weighted_goodput, change))
        return rateds

    def best(self, rated: Iterable[Rated]) -> Rated | None:
        """Return the one that gains most of those that help on every engine that fits the page; None where none does.

        Only of those that gain as much are the other engines simulated.
        """
        ordered = sorted(rated, key=lambda step: -step.gain)
        return next((step for step in ordered if self.is_sure(step.change)), None)

    def is_sure(self, change: ConfigChange) -> bool:
        """Return whether a change helps on every engine that fits the page."""
        gain = self.model.gain(self.chosen, change)
        return gain is not None and gain.helps


def choose(model: Model, settings: Sequence[ConfigChange], more: Sequence[ConfigChange], total: int) -> Choice:
    """Choose the best of caps, sequences and `settings` while one helps, then `more` memory, then `total` replicas."""
    search = Search(model)
    now = model.known.measured.running

    def left() -> list[ConfigChange]:
        kinds = {change.key for change in search.chosen}
        changes = [
            *config_changes.caps(model.known, model.thresholds.advice.refused_max_ratio),
            *config_changes.fewer_sequences(model.known, search.state, now),
            *settings,
        ]
        return [change for change in changes if change.key not in kinds]

    while search.add(left()):
        pass
    for change in more:
        _let_grow(search, change, now)
        search.add([change])
    add_replicas(search, total)
    _route_by_length(search)
    return build_choice(search)


def without_restart(model: Model, most_refused: float, total: int) -> Choice:
    """Return the best caps, which refuse a share `most_refused` or less, and `total` replicas without them."""
    capped, replicated = Search(model), Search(model)
    while capped.add(
        change
        for change in config_changes.caps(model.known, most_refused)
        if change.key not in {config_change.key for config_change in capped.chosen}
    ):
        pass
    add_replicas(replicated, total)
    choices = [build_choice(search) for search in (capped, replicated)]
    return Choice(
        tuple(step for choice in choices for step in choice.steps),
        tuple(s for choice in choices for s in choice.declined),
    )


def _expected_alone(model: Model, change: ConfigChange, against: str) -> Expected | None:
    """Return what a change does alone, with its range where it may help and nothing else speaks `against` it.

    Else the other engines are not simulated.
    """
    gain = model.gain([], change, surely=False)
    helps = gain is not None and gain.helps and not against
    return model.expected([], [change], ranged=change.at_best or helps)


def _let_grow(search: Search, change: ConfigChange, running: float) -> None:
    """Revise a cut of max_num_seqs for a larger pool, where another value, or none, gains more."""
    cut = next((config_change for config_change in search.chosen if config_change.key == "max_num_seqs"), None)
    if cut is None or search.model.gain(search.chosen, change, surely=False) is None:
        return
    model, others = search.model, [config_change for config_change in search.chosen if config_change is not cut]
    larger = change.apply(applied(model.state, others))
    smaller = config_changes.fewer_sequences(model.known, larger, running)
    options = [search.chosen, others, *([*others, config_change] for config_change in smaller)]

    def weighted_goodput(option: list[ConfigChange]) -> float:
        outcome = model.outcome(applied(model.state, [*option, change]))
        return 0.0 if outcome is None else outcome.weighted_goodput

    best = max(options, key=weighted_goodput)
    if weighted_goodput(best) > (1 + model.thresholds.advice.gain_min_ratio) * weighted_goodput(search.chosen):
        search.chosen = best


def add_replicas(search: Search, total: int) -> None:
    """Run `total` replicas for each one now (1: no more) where requests wait for the pool without, and that helps."""
    if total > 1 and not is_calm(search.model, search.chosen):
        replicate(search, total)


def replicate(search: Search, total: int) -> None:
    """Run `total` replicas for each one now where these alone help, or have requests at a rate answered sooner."""
    change, alone = config_changes.replicas(total), Search(search.model, tried=search.tried)
    if alone.add([change]) or (search.model.known.demand.rate and _sooner(search.model, change)):
        search.chosen.append(change)


def _sooner(model: Model, change: ConfigChange) -> bool:
    """Return whether answers come sooner on every engine that fits: at a rate no change gives more of them."""
    least = model.thresholds.advice.gain_min_ratio
    pairs = zip(model.outcomes(()), model.outcomes([change]), strict=False)
    return all(after.latency_p95 <= (1 - least) * before.latency_p95 for before, after in pairs)


def _route_by_length(search: Search) -> None:
    """Route by prompt length where that gains more than as many replicas for all, or needs fewer of them.

    Not where it costs tokens: short requests that are answered sooner may be all that it gains.
    """
    plain = next((change for change in search.chosen if change.key == "add_replica"), None)
    if plain is None:
        return
    model = search.model
    usual, least = list(model.outcomes([plain])), model.thresholds.advice.gain_min_ratio
    best: tuple[float, ConfigChange] | None = None
    for change in _length_routings(model, plain.by):
        fewer = change.by < plain.by and is_calm(model, [change])
        if change.by == plain.by:
            search.tried.setdefault(ROUTE_BY_LENGTH, change)
            search.against.setdefault(ROUTE_BY_LENGTH, "does no more than as many servers for all of them")
        elif not fewer:
            continue
        gains = list[float]()
        for outcome, other in zip(model.outcomes([change]), usual, strict=False):
            servers = change.by / plain.by
            more_tokens = servers * outcome.tokens_per_second / other.tokens_per_second - 1
            gain = servers * outcome.weighted_goodput / other.weighted_goodput - 1
            gains.append(gain if more_tokens >= -least else min(gain, more_tokens))
            if gains[-1] < least and not fewer:
                break
        if len(gains) == len(usual) and (fewer or min(gains) >= least):
            weighted_goodput = min(gains) + (plain.by - change.by)
            best = max(best or (weighted_goodput, change), (weighted_goodput, change), key=lambda one: one[0])
    if best is not None:
        search.chosen[search.chosen.index(plain)] = best[1]
        search.against["add_replica"] = "does less than as many servers for short and long requests route_by_length"


def _length_routings(model: Model, servers: int) -> Iterator[ConfigChange]:
    """Yield bounds of prompt length and the servers on either side, by the block-seconds that requests take."""
    requests = model.known.demand.requests
    whole = sum(_takes(shape) for shape in requests)
    bounds = config_changes.length_bounds(model.known, model.thresholds.advice.long_requests_max_ratio)
    for bound in itertools.islice(bounds, MAX_LENGTH_ROUTING_BOUNDS):
        share = sum(_takes(shape) for shape in requests if shape.prompt > bound) / whole
        for total in (servers - 1, servers):
            around = {math.floor(share * total), math.ceil(share * total)}
            yield from (
                config_changes.route_by_length(bound, total - long, long) for long in sorted(around) if 0 < long < total
            )


def _takes(shape: RequestShape) -> float:
    return (shape.prompt + shape.output / 2) * shape.output


def is_calm(model: Model, changes: Sequence[ConfigChange]) -> bool:
    """Return whether no request waits for the pool or is preempted.

    Where requests come at a rate, it is enough that they are answered in time: some wait, or are preempted, by chance.
    """
    at_rate = bool(model.known.demand.rate)
    latest = model.limit_seconds if at_rate else math.inf
    return (at_rate or preempts_nobody(model, changes)) and all(
        outcome.waiting < max(CALM_MAX_WAITING, CALM_WAITING_RATIO * outcome.running) and outcome.latency_p95 <= latest
        for outcome in model.outcomes(changes)
    )


def preempts_nobody(model: Model, changes: Sequence[ConfigChange]) -> bool:
    """Return whether preemptions stay below the threshold of `preempting`, for every engine that fits the page."""
    most = model.thresholds.symptoms.preempting_min_ratio
    return all(outcome.preempted_ratio < most for outcome in model.outcomes(changes))


def build_choice(search: Search) -> Choice:
    """Return the chosen changes and the declined ones, with what each would do alone."""
    model = search.model
    steps = [Step(change, alone) for change in search.chosen if (alone := model.expected([], [change])) is not None]
    kinds = {change.key for change in search.chosen}
    declined = [
        Step(change, expected, against)
        for key, change in search.tried.items()
        if key not in kinds
        and (expected := _expected_alone(model, change, against := search.against.get(key, ""))) is not None
    ]
    return Choice(tuple(steps), tuple(declined))


RAISES: Final = (1.25, 1.5, 2.0, 3.0)
"""Times a limit as it is, tried beside the most it may be raised to."""
STEPS: Final = (2.0, 4.0)


def more_sequences(model: Model, limit: float, most_factor: float, total: int) -> Choice:
    """Raise a cap on sequences as far as that helps and the pool holds them; `total` servers where it holds no more."""
    measured = model.known.measured
    demand = model.state[1].clients or math.ceil(measured.running + measured.waiting)
    most = max(limit + 1, min(demand, most_factor * limit))
    values = sorted({math.ceil(min(most, limit * factor)) for factor in (*RAISES, most_factor)} - {math.ceil(limit)})
    search = Search(model)
    if _climb(search, [config_changes.sequences(value) for value in values]):
        add_replicas(search, total)
    return build_choice(search)


def larger_steps(model: Model, limit: float, total: int) -> Choice:
    """Raise the tokens of a step as far as that helps; `total` servers where it does not.

    Not both at once: where steps are full, how their time divides is not known, and larger ones may do more than this.
    """
    search = Search(model)
    if _climb(search, [config_changes.step_tokens(int(factor * limit)) for factor in STEPS]) and not search.chosen:
        add_replicas(search, total)
    return build_choice(search)


def more_servers(model: Model, total: int, rejected: Iterable[ConfigChange] = ()) -> Choice:
    """Return `total` replicas where they help, and the gains of the `rejected` changes."""
    search = Search(model)
    for change in rejected:
        if model.gain([], change, surely=False) is not None:
            search.tried[change.key] = change
    replicate(search, total)
    return build_choice(search)


def without_hold(model: Model, most: float) -> Choice:
    """Return what lifting every limit but the pool, and `most` sequences, would give at best."""
    change = replace(config_changes.sequences(most), key=HOLD)
    expected, gain = model.expected([], [change]), model.gain([], change)
    if expected is None or gain is None:
        return Choice()
    step = Step(change, replace(expected, at_best=True))
    helps = gain.weighted_goodput >= model.thresholds.advice.gain_min_ratio
    return Choice((step,)) if helps else Choice(declined=(step,))


def _climb(search: Search, ladder: Sequence[ConfigChange]) -> bool:
    """Take the lowest rung that gains about as much as the best; False where the last rung is it.

    Only rungs on which no request is preempted.
    """
    model = search.model
    safe = [change for change in ladder if preempts_nobody(model, [*search.chosen, change])]
    if not safe and ladder:
        search.tried[ladder[0].key] = ladder[0]
        search.against[ladder[0].key] = "requests would preempt each other"
        return True
    rated = search.rated(safe)
    best = search.best(rated)
    if best is None:
        return True
    chosen = next(filter(search.is_sure, about_the_best(rated, best.gain, model.thresholds)))
    search.chosen.append(chosen)
    return chosen is not ladder[-1]


SEQUENCES: Final = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
"""Of the requests that the pool holds to their end."""


def limits(model: Model, base: Sequence[ConfigChange], most_refused: float) -> Iterator[ConfigChange]:
    """Yield the values that are tried of each limit: of sequences, and caps that refuse at most so many requests."""
    server, demand = state = applied(model.state, base)
    values = {max(1, round(holds(state) * factor)) for factor in SEQUENCES} - {server.max_num_seqs}
    yield from (config_changes.sequences(value) for value in sorted(values) if value <= (demand.clients or math.inf))
    yield from config_changes.caps(model.known, most_refused)


def without_gpu(model: Model, settings: Sequence[ConfigChange]) -> Step | None:
    """Return the change that gains most without more GPUs, else the likeliest; None where none is likely to help.

    Tried are limits, with caps however many requests they refuse, and `settings`, each by itself; of those that gain
    about as much the first is taken. One that helps on every engine that fits the page comes first.
    """
    search = Search(model)
    rated = search.rated([*_worth_trying(model, limits(model, (), 1.0)), *settings])
    surest = search.best(rated)
    most = surest.gain if surest is not None else max((step.gain for step in rated), default=0.0)
    enough = about_the_best(rated, most, model.thresholds)
    best = next((change for change in enough if surest is None or search.is_sure(change)), None)
    expected = None if best is None else model.expected([], [best])
    return None if best is None or expected is None else Step(best, expected)


def _worth_trying(model: Model, changes: Iterable[ConfigChange]) -> Iterator[ConfigChange]:
    """Yield the changes without sequences that do not limit what runs, and caps beyond where milder ones do more."""
    known, advice, most = model.known, model.thresholds.advice, dict[str, float]()
    at_rate = known.demand.rate and not known.demand.clients
    for change in changes:
        if change.key == "max_num_seqs":
            if change.value < min(known.measured.running, model.state[0].max_num_seqs):
                yield change
            continue
        if change.key == "cap_output" and known.outputs.above(change.value)[0] > advice.refused_max_ratio:
            continue
        best = most.get(change.key, 0.0)
        if math.isinf(best) or (at_rate and model.arriving_per_second([change]) < best):
            continue
        outcome = model.outcome(change.apply(model.state))
        # Requests under way may be longer than those that ended: of these a cap may cut nearly all.
        if outcome is None or outcome.shortened_ratio > advice.refused_max_ratio:
            continue
        past = outcome.weighted_goodput < (1 - advice.gain_min_ratio) * best
        most[change.key] = math.inf if past else max(best, outcome.weighted_goodput)
        yield change
