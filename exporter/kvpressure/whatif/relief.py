"""What would help where requests wait for something else than the pool: a limit, a slot, the GPU itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from kvpressure.whatif.choice import Choice, Search, Step, add_replicas, preempts_nobody, told
from kvpressure.whatif.consequences import Model
from kvpressure.whatif.cures import Cure, sequences, step_tokens

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
    return told(search)


def larger_steps(model: Model, limit: float) -> Choice:
    """Raise the tokens of a step as far as that helps; servers where it does not.

    Not both at once: where steps are full, how their time divides is not told, and larger ones may do more than this.
    """
    search = Search(model)
    if _climb(search, [step_tokens(int(factor * limit)) for factor in STEPS]) and not search.chosen:
        add_replicas(search)
    return told(search)


def more_servers(model: Model, vain: Iterable[Cure] = ()) -> Choice:
    """As few as answer in time with nobody waiting; `vain` is what somebody might think of and is only told about."""
    search = Search(model)
    for cure in vain:
        if model.gain([], cure) is not None:
            search.tried[cure.key] = cure
    add_replicas(search, in_time=True)
    return told(search)


def let_go(most: float) -> Cure:
    """Nothing but the pool, and `most` sequences, holds the batch back any more."""
    return Cure(HOLD, most, lambda state: (replace(state[0], max_num_seqs=most), state[1]))


def without_hold(model: Model, most: float) -> Choice:
    """What would come of it if nothing but the pool, and `most` sequences, held the batch back: that at best."""
    cure = let_go(most)
    expected, gain = model.expected([], [cure]), model.gain([], cure)
    if expected is None or gain is None:
        return Choice()
    step = Step(cure, replace(expected, at_best=True))
    helps = gain.worth >= model.thresholds.advice_gain_min_ratio
    return Choice((step,)) if helps else Choice(declined=(step,))


def _climb(search: Search, ladder: Sequence[Cure]) -> bool:
    """Take the lowest rung that gains about as much as the best; False where the last rung is it.

    Only rungs on which nobody is thrown out of the pool.
    """
    model, least = search.model, search.model.thresholds.advice_gain_min_ratio
    safe = [cure for cure in ladder if preempts_nobody(model, [*search.chosen, cure])]
    if not safe and ladder:
        search.tried[ladder[0].key] = ladder[0]
        search.against[ladder[0].key] = "requests would preempt each other"
        return True
    gains = [(gain, cure) for cure in safe if (gain := model.gain(search.chosen, cure)) is not None]
    for _, cure in gains:
        search.tried.setdefault(cure.key, cure)
    helping = [(gain, cure) for gain, cure in gains if gain.helps]
    if not helping:
        return True
    best = max(gain.worth for gain, _ in helping)
    chosen = next(cure for gain, cure in helping if 1 + gain.worth >= (1 + best) * (1 - least))
    search.chosen.append(chosen)
    return chosen is not ladder[-1]
