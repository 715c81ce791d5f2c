"""Changes beside each other, and under more and less load, for `whatif`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.simulation.config_changes import ConfigChange, applied
from kvpressure.simulation.consequences import Figures, Model

LOADS: Final = (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
"""Times today's, for the curves."""


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
