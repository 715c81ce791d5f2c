"""What to do where requests wait for another limit than the pool: `max_num_seqs`, the token budget, the GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from kvpressure.simulation import config_changes
from kvpressure.simulation.config_changes import ConfigChange
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import (
    HOLD,
    Choice,
    Search,
    Step,
    about_the_best,
    add_replicas,
    build_choice,
    preempts_nobody,
    replicate,
)

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
