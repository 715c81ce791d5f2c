"""The best limits: every value that is tried of each by itself, and sets of them under an objective.

Each is simulated, and the best ones with their range.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.simulation import config_changes
from kvpressure.simulation.config_changes import MAX_REPLICAS, WATERMARK_RATIO, ConfigChange, applied, holds
from kvpressure.simulation.consequences import Model, Row, row
from kvpressure.simulation.greedy_search import Search, Step, about_the_best
from kvpressure.simulation.outcome import Outcome

SEQUENCES: Final = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
"""Of the requests that the pool holds to their end."""
STEPS: Final = (1024, 2048, 4096, 8192, 16_384)
SURE_TRIED: Final = 12
"""Of the best sets, that are simulated for every engine that this one may be."""

Progress = Callable[[int, int], None]
"""How many sets were simulated, of how many."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best set (its base first) and whether it keeps the objective; `surely` for all engines that this may be.

    Where it does not, `more` is the same with as few replicas as would, None where not even the most that are tried do.
    """

    best: Row
    kept: bool
    surely: bool
    tried: int
    more: Row | None = None


@dataclass(frozen=True, slots=True)
class _Tried:
    config_changes: tuple[ConfigChange, ...]
    outcome: Outcome

    @property
    def spoilt(self) -> float:
        """Share of the requests that get no whole answer."""
        return self.outcome.refused_ratio + self.outcome.shortened_ratio


def search(
    model: Model, base: Sequence[ConfigChange], has_watermark: bool, progress: Progress = lambda _, __: None
) -> SearchResult:
    """Return the best limits, on top of `base`, that keep the p95 within the model's limit of seconds.

    Best is who refuses and cuts short fewest requests; of those, who answers most in time; of those who gain hardly
    less, who changes least.
    """
    fixed, values = {change.key for change in base}, dict[str, list[ConfigChange | None]]()
    for change in limits(model, base, model.thresholds.advice.refused_max_ratio):
        if change.key not in fixed:
            values.setdefault(change.key, [None]).append(change)
    sets = [
        tuple(config_change for config_change in chosen if config_change)
        for chosen in itertools.product(*values.values())
    ]
    tried: list[_Tried] = []
    for number, changes in enumerate(sets, 1):
        outcome = model.outcome(applied(model.state, (*base, *changes)))
        if outcome is not None:
            tried.append(_Tried(changes, outcome))
        progress(number, len(sets))
    refining = list(refinements(model, fixed, has_watermark))
    for likely, change in itertools.product(_best_first(model, tried)[:SURE_TRIED], refining):
        outcome = model.outcome(applied(model.state, (*base, *likely.config_changes, change)))
        if outcome is not None:
            tried.append(_Tried((*likely.config_changes, change), outcome))
    ordered = _best_first(model, tried)
    if not ordered:
        closest = min(
            tried,
            key=lambda late: (late.outcome.latency_p95, len(late.config_changes)),
            default=_Tried((), _NOBODY),
        )
        changes = (*base, *closest.config_changes)
        return SearchResult(row(model, changes), False, False, len(tried), _with_replicas(model, base, changes))
    for likely in ordered[:SURE_TRIED]:
        compared = row(model, (*base, *likely.config_changes))
        if compared.figures is not None and compared.figures.latency_p95.high <= model.limit_seconds:
            return SearchResult(compared, True, True, len(tried))
    return SearchResult(row(model, (*base, *ordered[0].config_changes)), True, False, len(tried))


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


def refinements(model: Model, fixed: set[str], has_watermark: bool) -> Iterator[ConfigChange]:
    """Yield changes that hardly ever decide, tried on the best sets only."""
    if has_watermark and "watermark" not in fixed:
        yield config_changes.watermark(WATERMARK_RATIO)
    if "max_num_batched_tokens" not in fixed:
        least = model.thresholds.advice.step_tokens_min_tokens
        yield from (
            config_changes.step_tokens(value) for value in STEPS if least <= value != model.state[0].step_tokens
        )


def _best_first(model: Model, tried: Sequence[_Tried]) -> list[_Tried]:
    kept = [choice for choice in tried if choice.outcome.latency_p95 <= model.limit_seconds]
    if not kept:
        return []
    thresholds = model.thresholds
    bearable = min(choice.spoilt for choice in kept) + thresholds.advice.goodput_loss_max_ratio
    most = max(choice.outcome.goodput for choice in kept if choice.spoilt <= bearable)
    enough = most * (1 - thresholds.advice.gain_min_ratio)

    def order(tried: _Tried) -> tuple[float, ...]:
        if tried.spoilt > bearable:
            return 2, tried.spoilt, -tried.outcome.goodput
        if tried.outcome.goodput < enough:
            return 1, -tried.outcome.goodput, tried.spoilt
        return 0, len(tried.config_changes), -tried.outcome.goodput

    return sorted(kept, key=order)


def _with_replicas(model: Model, base: Sequence[ConfigChange], changes: Sequence[ConfigChange]) -> Row | None:
    if any(change.key == "add_replica" for change in base):
        return None
    for total in range(2, MAX_REPLICAS + 1):
        outcome = model.outcome(applied(model.state, (*changes, config_changes.replicas(total))))
        if outcome is not None and outcome.latency_p95 <= model.limit_seconds:
            return row(model, (*changes, config_changes.replicas(total)))
    return None


_NOBODY = Outcome(0.0, 0.0, 0.0, math.inf, math.inf, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
