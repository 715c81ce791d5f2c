"""The best limits under an objective: every set of some values of each limit is simulated, the best ones with range."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.simulation import config_changes
from kvpressure.simulation.comparison import Row, row
from kvpressure.simulation.config_changes import MAX_REPLICAS, WATERMARK_RATIO, ConfigChange, applied, holds
from kvpressure.simulation.consequences import Model
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
    fixed = {change.key for change in base}
    sets = [
        tuple(config_change for config_change in chosen if config_change)
        for chosen in itertools.product(*_values(model, base, fixed))
    ]
    tried: list[_Tried] = []
    for number, changes in enumerate(sets, 1):
        outcome = model.outcome(applied(model.state, (*base, *changes)))
        if outcome is not None:
            tried.append(_Tried(changes, outcome))
        progress(number, len(sets))
    refinements = list(_refinements(model, fixed, has_watermark))
    for one, change in itertools.product(_best_first(model, tried)[:SURE_TRIED], refinements):
        outcome = model.outcome(applied(model.state, (*base, *one.config_changes, change)))
        if outcome is not None:
            tried.append(_Tried((*one.config_changes, change), outcome))
    ordered = _best_first(model, tried)
    if not ordered:
        closest = min(
            tried, key=lambda one: (one.outcome.latency_p95, len(one.config_changes)), default=_Tried((), _NOBODY)
        )
        changes = (*base, *closest.config_changes)
        return SearchResult(row(model, changes), False, False, len(tried), _with_replicas(model, base, changes))
    for one in ordered[:SURE_TRIED]:
        found = row(model, (*base, *one.config_changes))
        if found.figures is not None and found.figures.latency_p95.high <= model.limit_seconds:
            return SearchResult(found, True, True, len(tried))
    return SearchResult(row(model, (*base, *ordered[0].config_changes)), True, False, len(tried))


def _values(model: Model, base: Sequence[ConfigChange], fixed: set[str]) -> Iterator[list[ConfigChange | None]]:
    """Yield the values to try of each limit that is free, the present one first."""
    server, demand = state = applied(model.state, base)
    if "max_num_seqs" not in fixed:
        room, most = holds(state), demand.clients or math.inf
        values = {max(1, round(room * factor)) for factor in SEQUENCES} - {server.max_num_seqs}
        yield [None, *(config_changes.sequences(value) for value in sorted(values) if value <= most)]
    found: dict[str, list[ConfigChange | None]] = {}
    for change in config_changes.caps(model.known, model.thresholds.advice.refused_max_ratio):
        found.setdefault(change.key, [None]).append(change)
    yield from (values for key, values in found.items() if key not in fixed)


def _refinements(model: Model, fixed: set[str], has_watermark: bool) -> Iterator[ConfigChange]:
    """Yield changes that hardly ever decide, tried on the best sets only."""
    if has_watermark and "watermark" not in fixed:
        yield config_changes.watermark(WATERMARK_RATIO)
    if "max_num_batched_tokens" not in fixed:
        least = model.thresholds.advice.step_tokens_min_tokens
        yield from (
            config_changes.step_tokens(value) for value in STEPS if least <= value != model.state[0].step_tokens
        )


def _best_first(model: Model, tried: Sequence[_Tried]) -> list[_Tried]:
    kept = [one for one in tried if one.outcome.latency_p95 <= model.limit_seconds]
    if not kept:
        return []
    thresholds = model.thresholds
    bearable = min(one.spoilt for one in kept) + thresholds.advice.goodput_loss_max_ratio
    most = max(one.outcome.goodput for one in kept if one.spoilt <= bearable)
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
