"""Which changes are worth making: one after the other, each judged on the engine that those before it leave."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvpressure.model.expected import Expected
from kvpressure.whatif.consequences import Model
from kvpressure.whatif.cures import (
    APART,
    MOST_REPLICAS,
    Cure,
    State,
    apart,
    applied,
    caps,
    fewer_sequences,
    length_bounds,
    replicas,
)
from kvpressure.whatif.server import Asked

MOST_PARTINGS: Final = 2
"""Bounds of prompt lengths that are tried to keep requests apart at."""
NOBODY_WAITING: Final = 0.5
"""Requests waiting, on average: with fewer, most polls see nobody wait, and the pool limits nobody any more."""


@dataclass(frozen=True, slots=True)
class Step:
    """A change, and what it is expected to do after those before it."""

    cure: Cure
    expected: Expected
    against: str = ""
    """What speaks against it though it gains, in words."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Changes to make, in order, and what all of them do; and those that would not help, each judged by itself."""

    steps: tuple[Step, ...] = ()
    declined: tuple[Step, ...] = ()
    together: Expected | None = None

    def step(self, key: str) -> Step | None:
        """The change of a kind that is to be made."""
        return next((step for step in self.steps if step.cure.key == key), None)


@dataclass(slots=True)
class Search:
    """What was chosen of the changes of an engine, and the first that was tried of each kind."""

    model: Model
    chosen: list[Cure] = field(default_factory=list)
    tried: dict[str, Cure] = field(default_factory=dict)
    against: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> State:
        """The engine with what was chosen."""
        return applied(self.model.state, self.chosen)

    def add(self, cures: Iterable[Cure]) -> bool:
        """Take the best of `cures` that helps; False where none does."""
        best: tuple[float, Cure] | None = None
        for cure in cures:
            gain = self.model.gain(self.chosen, cure)
            if gain is None:
                continue
            # Of each kind the first value that was tried is the one that would have been advised.
            self.tried.setdefault(cure.key, cure)
            if gain.helps and (best is None or gain.worth > best[0] + 1e-9):
                best = gain.worth, cure
        if best is None:
            return False
        self.chosen.append(best[1])
        return True


def choose(model: Model, settings: Sequence[Cure], more: Sequence[Cure]) -> Choice:
    """The best of caps, sequences and `settings` first, as long as one helps; then `more` memory, then replicas."""
    search = Search(model)
    now = model.known.measured.running

    def left() -> list[Cure]:
        kinds = {cure.key for cure in search.chosen}
        found = [
            *caps(model.known, model.thresholds.advice_refused_max_ratio),
            *fewer_sequences(model.known, search.state, now),
            *settings,
        ]
        return [cure for cure in found if cure.key not in kinds]

    while search.add(left()):
        pass
    for cure in more:
        _let_grow(search, cure, now)
        search.add([cure])
    add_replicas(search)
    _keep_apart(search)
    return told(search)


def _let_grow(search: Search, cure: Cure, running: float) -> None:
    """A cut of sequences is for the pool as it is: with a larger one another, or none, where that does more."""
    cut = next((one for one in search.chosen if one.key == "max_num_seqs"), None)
    if cut is None or search.model.gain(search.chosen, cure) is None:
        return
    model, others = search.model, [one for one in search.chosen if one is not cut]
    larger = cure.apply(applied(model.state, others))
    options = [search.chosen, others, *([*others, one] for one in fewer_sequences(model.known, larger, running))]

    def worth(option: list[Cure]) -> float:
        outcome = model.outcome(applied(model.state, [*option, cure]))
        return 0.0 if outcome is None else outcome.worth

    best = max(options, key=worth)
    if worth(best) > (1 + model.thresholds.advice_gain_min_ratio) * worth(search.chosen):
        search.chosen = best


def add_replicas(search: Search, *, in_time: bool = False) -> None:
    """As few as leave nobody waiting for the pool, of all the engines that it may be; or as many as help.

    With `in_time` 95 % must be answered within the model's limit as well, and two is the least that is tried.
    """
    if not in_time and is_calm(search.model, search.chosen):
        return
    best: Cure | None = None
    for total in range(2, MOST_REPLICAS + 1):
        cure = replicas(total)
        if search.model.outcome(cure.apply(search.state)) is None:
            break
        best = cure
        if is_calm(search.model, [*search.chosen, cure], in_time=in_time):
            break
    if best is not None:
        search.add([best])


def _keep_apart(search: Search) -> None:
    """Short and long requests on servers of their own, where these do more than as many for all, or fewer suffice."""
    plain = next((cure for cure in search.chosen if cure.key == "add_replica"), None)
    if plain is None:
        return
    model = search.model
    before = [cure for cure in search.chosen if cure is not plain]
    usual = model.outcomes([*before, plain])
    best: tuple[float, Cure] | None = None
    for cure in _partings(model, applied(model.state, before), plain.by):
        fewer = cure.by < plain.by and is_calm(model, [*before, cure])
        outcomes = model.outcomes([*before, cure])
        if len(outcomes) != len(usual):
            continue
        gains = [cure.by * one.worth / (plain.by * other.worth) - 1 for one, other in zip(outcomes, usual, strict=True)]
        if cure.by == plain.by:
            search.tried.setdefault(APART, cure)
            search.against.setdefault(APART, "does no more than as many servers for all of them")
        if fewer or (cure.by == plain.by and min(gains) >= model.thresholds.advice_gain_min_ratio):
            worth = min(gains) + (plain.by - cure.by)
            best = max(best or (worth, cure), (worth, cure), key=lambda one: one[0])
    if best is not None:
        search.chosen[search.chosen.index(plain)] = best[1]
        search.against["add_replica"] = "does less than as many servers for short and long requests apart"


def _partings(model: Model, state: State, servers: int) -> Iterator[Cure]:
    """Where to part requests, and how many servers go to each side: by the room that they take, and for how long."""
    asked = state[1].asked
    whole = sum(_takes(one) for one in asked)
    bounds = length_bounds(model.known, model.thresholds.advice_long_requests_max_ratio)
    for bound in itertools.islice(bounds, MOST_PARTINGS):
        if bound >= state[0].cap_prompt:
            continue
        share = sum(_takes(one) for one in asked if one.prompt > bound) / whole
        for total in (servers - 1, servers):
            around = {math.floor(share * total), math.ceil(share * total)}
            yield from (apart(bound, total - long, long) for long in sorted(around) if 0 < long < total)


def _takes(one: Asked) -> float:
    return (one.prompt + one.output / 2) * one.output


def is_calm(model: Model, cures: Sequence[Cure], *, in_time: bool = False) -> bool:
    """Nobody waits for the pool, nor is thrown out of it; with `in_time`, nor too late."""
    latest = model.limit_seconds if in_time else math.inf
    return preempts_nobody(model, cures) and all(
        outcome.waiting < NOBODY_WAITING and outcome.latency_p95 <= latest for outcome in model.outcomes(cures)
    )


def preempts_nobody(model: Model, cures: Sequence[Cure]) -> bool:
    """No more requests are thrown out than do not count as preempting, of all the engines that it may be."""
    most = model.thresholds.preempting_min_ratio
    return all(outcome.preempted_ratio < most for outcome in model.outcomes(cures))


def told(search: Search) -> Choice:
    """What was chosen with what each step adds, and what was not with what it would do by itself."""
    model, steps = search.model, []
    for number, cure in enumerate(search.chosen):
        expected = model.expected(search.chosen[:number], [cure])
        if expected is not None:
            steps.append(Step(cure, expected))
    kinds = {cure.key for cure in search.chosen}
    declined = [
        Step(cure, expected, search.against.get(key, ""))
        for key, cure in search.tried.items()
        if key not in kinds and (expected := model.expected([], [cure])) is not None
    ]
    together = model.expected([], search.chosen) if len(search.chosen) > 1 else None
    return Choice(tuple(steps), tuple(declined), together)
