"""Changes that help where requests wait for another limit than the pool: max_num_seqs, the token budget, the GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from kvpressure.simulation.config_changes import ConfigChange, sequences, step_tokens
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import Choice, Search, Step, add_replicas, build_choice, preempts_nobody

RAISES: Final = (1.25, 1.5, 2.0, 3.0)
"""Times a limit as it is, tried beside the most it may be raised to."""
STEPS: Final = (2.0, 4.0)
HOLD: Final = "hold"


def more_sequences(model: Model, limit: float, most_factor: float) -> Choice:
    """Raise a cap on sequences as far as that helps and the pool holds them; servers where it holds no more."""
    measured = model.known.measured
    demand = model.state[1].clients or math.ceil(measured.running + measured.waiting)
    most = max(limit + 1, min(demand, most_factor * limit))
    values = sorted({math.ceil(min(most, limit * factor)) for factor in (*RAISES, most_factor)} - {math.ceil(limit)})
    search = Search(model)
    stopped = _climb(search, [sequences(value) for value in values])
    if stopped:
        add_replicas(search)
    return build_choice(search)


def larger_steps(model: Model, limit: float) -> Choice:
    """Raise the tokens of a step as far as that helps; servers where it does not.

    Not both at once: where steps are full, how their time divides is not told, and larger ones may do more than this.
    """
    search = Search(model)
    if _climb(search, [step_tokens(int(factor * limit)) for factor in STEPS]) and not search.chosen:
        add_replicas(search)
    return build_choice(search)


def more_servers(model: Model, rejected: Iterable[ConfigChange] = ()) -> Choice:
    """Return as few as answer in time with nobody waiting, and the gains of `rejected`, which a reader may think of."""
    search = Search(model)
    for change in rejected:
        if model.gain([], change) is not None:
            search.tried[change.key] = change
    add_replicas(search, in_time=True)
    return build_choice(search)


def lift_sequence_cap(most: float) -> ConfigChange:
    """Lift every limit on the batch but the pool and `most` sequences."""
    return ConfigChange(HOLD, most, lambda state: (replace(state[0], max_num_seqs=most), state[1]))


def without_hold(model: Model, most: float) -> Choice:
    """Return what lifting every limit but the pool, and `most` sequences, would give at best."""
    change = lift_sequence_cap(most)
    expected, gain = model.expected([], [change]), model.gain([], change)
    if expected is None or gain is None:
        return Choice()
    step = Step(change, replace(expected, at_best=True))
    helps = gain.weighted_goodput >= model.thresholds.advice_gain_min_ratio
    return Choice((step,)) if helps else Choice(declined=(step,))


def _climb(search: Search, ladder: Sequence[ConfigChange]) -> bool:
    """Take the lowest rung that gains about as much as the best; False where the last rung is it.

    Only rungs on which no request is preempted.
    """
    model, least = search.model, search.model.thresholds.advice_gain_min_ratio
    safe = [change for change in ladder if preempts_nobody(model, [*search.chosen, change])]
    if not safe and ladder:
        search.tried[ladder[0].key] = ladder[0]
        search.against[ladder[0].key] = "requests would preempt each other"
        return True
    gains = [(gain, change) for change in safe if (gain := model.gain(search.chosen, change)) is not None]
    for _, change in gains:
        search.tried.setdefault(change.key, change)
    helping = [(gain, change) for gain, change in gains if gain.helps]
    if not helping:
        return True
    best = max(gain.weighted_goodput for gain, _ in helping)
    chosen = next(change for gain, change in helping if 1 + gain.weighted_goodput >= (1 + best) * (1 - least))
    search.chosen.append(chosen)
    return chosen is not ladder[-1]
