"""What helps against evicted contexts, each change by itself; and the pool at which hits collapse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kvpressure.simulation import config_changes
from kvpressure.simulation.config_changes import MAX_REPLICAS, ConfigChange, State
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import Choice, Rated, Step, about_the_best
from kvpressure.simulation.scheduler import simulate

SHARES: Final = (0.9, 0.8, 0.7, 0.6, 0.5)
"""Of the sessions, tried as a limit for each replica."""
TIERS: Final = (0.5, 1.0, 1.5)
"""Of what all sessions keep, tried as sizes of a tier outside the pool."""
ROOM_FACTOR: Final = 4.0
"""Times the working set, in which everything is found."""
FOUND_RATIO: Final = 0.9
"""Of the hits that could be, with which more servers find hardly more."""
LEAST_ROOM: Final = 0.05
BISECTIONS: Final = 10
PAST_THE_BEST: Final = 0.02
"""Of what is served: a change that serves so much less than a smaller one is past the best; less is chance."""


def working_set_tokens(state: State) -> float:
    """Return the tokens that all sessions of the state keep at a time."""
    _, demand = state
    sessions = demand.sessions
    return 0.0 if sessions is None else demand.clients * sessions.kept_tokens + sessions.shared


def cliff_tokens(state: State) -> float | None:
    """Return the pool at which hits pass half of what they could be; None where no request would be answered."""
    server, demand = state
    whole = working_set_tokens(state)
    low, high = LEAST_ROOM * whole, ROOM_FACTOR * whole
    best = simulate(replace(server, pool_tokens=high), demand)
    if best is None or not best.hit_ratio:
        return None
    for _ in range(BISECTIONS):
        pool = math.sqrt(low * high)
        outcome = simulate(replace(server, pool_tokens=pool), demand)
        below = outcome is None or (outcome.hit_ratio or 0.0) < best.hit_ratio / 2
        low, high = (pool, high) if below else (low, pool)
    return high


def fewer_sessions(model: Model) -> ConfigChange | None:
    """Return the limit of sessions with which this engine serves most; None where fewer are no help."""
    clients = model.state[1].clients
    options = sorted({max(1, round(share * clients)) for share in SHARES} - {clients}, reverse=True)
    return _best(model, map(config_changes.sessions, options))


def tier(model: Model, bytes_per_token: float) -> ConfigChange | None:
    """Return the smallest tier for evicted contexts that gains about as much as the best one that is tried."""
    whole = working_set_tokens(model.state) * bytes_per_token / 2**30
    options = sorted({max(1, math.ceil(share * whole)) for share in TIERS})
    return _best(model, (config_changes.context_tier(gib, bytes_per_token) for gib in options))


def replicas(model: Model) -> ConfigChange | None:
    """Return the fewest servers, for each one, on which most is found of what could be; None where none do."""
    server, demand = model.state
    roomy = model.outcome((replace(server, pool_tokens=ROOM_FACTOR * working_set_tokens(model.state)), demand))
    if roomy is None or roomy.hit_ratio is None:
        return None
    for total in range(2, MAX_REPLICAS + 1):
        change = config_changes.replicas(total)
        outcome = model.outcome(change.apply(model.state))
        if outcome is not None and (outcome.hit_ratio or 0.0) >= FOUND_RATIO * roomy.hit_ratio:
            return change
    return None


def _best(model: Model, options: Iterable[ConfigChange]) -> ConfigChange | None:
    """Return the first of the options, from the least on, that gains about as much as the best of them.

    Those beyond one that is worse than the one before it are not simulated.
    """
    rated = list[Rated]()
    for change in options:
        gain = model.gain([], change, surely=False)
        if gain is None:
            continue
        if rated and gain.weighted_goodput < rated[-1].gain - PAST_THE_BEST:
            break
        rated.append(Rated(gain.weighted_goodput, change))
    most = max((each.gain for each in rated), default=0.0)
    return next(about_the_best(rated, most, model.thresholds), None)


def choose(model: Model, changes: Sequence[ConfigChange]) -> Choice:
    """Return the changes by how much each helps by itself, and those that do not help."""
    rated = [(gain, change) for change in changes if (gain := model.gain([], change)) is not None]
    rated.sort(key=lambda rated_change: rated_change[0].weighted_goodput / rated_change[1].by, reverse=True)
    helping = [change for gain, change in rated if gain.helps]
    return Choice(
        tuple(_steps(model, helping)), tuple(_steps(model, (change for _, change in rated if change not in helping)))
    )


def _steps(model: Model, changes: Iterable[ConfigChange]) -> Iterator[Step]:
    for change in changes:
        expected = model.expected([], [change])
        if expected is not None:
            yield Step(change, expected)
