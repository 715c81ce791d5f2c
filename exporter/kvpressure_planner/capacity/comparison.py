"""Changes beside each other, under more and less load, and the best limits under an objective, for `whatif`.

Of limits every value that is tried of each by itself, and sets of them; each is simulated, and the best ones with
their range.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.simulation import config_changes
from kvpressure.simulation.config_changes import MAX_REPLICAS, WATERMARK_RATIO, ConfigChange, applied
from kvpressure.simulation.consequences import Figures, Model
from kvpressure.simulation.greedy_search import limits
from kvpressure.simulation.outcome import Outcome

LOADS: Final = (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
"""Times today's, for the curves."""
STEPS: Final = (1024, 2048, 4096, 8192, 16_384)
SURE_TRIED: Final = 12
"""Of the best sets, that are simulated for every engine that this one may be."""

Progress = Callable[[int, int], None]
"""How many sets were simulated, of how many."""


@dataclass(frozen=True, slots=True)
class Row:
    """Changes (none is today) and what the engine does with them; None where it would answer none."""

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
    """Return today, each change by itself where there are several, and all together."""
    alone = [(change,) for change in changes] if len(changes) > 1 else []
    together = [tuple(changes)] if changes else []
    return [row(model, changes) for changes in ((), *alone, *together)]


def row(model: Model, changes: Sequence[ConfigChange]) -> Row:
    """Return the figures of the engine with these changes."""
    state, behind = applied(model.state, changes), False
    demand, outcome = state[1], model.outcome(state)
    # Of few requests chance alone may answer fewer than come; those do not wait.
    if demand.rate and not demand.clients and outcome is not None and outcome.waiting >= 1:
        least = model.thresholds.advice.falling_behind_max_ratio
        behind = outcome.answers_per_second < least * demand.rate * (1 - outcome.refused_ratio)
    return Row(tuple(changes), model.figures(changes), behind)


def over_load(model: Model, changes: Sequence[ConfigChange]) -> list[Point]:
    """Return outcomes from a tenth of today's load to three times as much, without loads that get no answer."""
    by = math.prod(change.by for change in changes)
    factor = model.tokens_factor
    server, demand = model.state
    points: dict[float, Point] = {}
    for times in LOADS:
        scaled = demand.times(times)
        outcome = model.outcome(applied((server, scaled), changes))
        load = float(scaled.clients or scaled.rate)
        if outcome is not None and load not in points:
            points[load] = Point(load, by * factor * outcome.tokens_per_second, outcome.latency_p95)
    return list(points.values())


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


_NOBODY = Outcome(0.0, 0.0, 0.0, math.inf, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
