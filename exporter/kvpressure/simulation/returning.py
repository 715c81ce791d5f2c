"""The same engine where prompts come back with all that was said before, and the cache has no room to keep that.

Where what all prompts share is all that the cache finds, the page of an engine that agents ask again and again looks
like that of one whose every prompt is new. More memory gives the first far more than the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kvpressure.model.limits import Limits
from kvpressure.model.view import Observed
from kvpressure.simulation.calibrate import Known
from kvpressure.simulation.calibrate_sessions import HITS_ERROR, growing_turns
from kvpressure.simulation.config_changes import ConfigChange, State, applied
from kvpressure.simulation.hits import best_hit_ratio
from kvpressure.simulation.outcome import Outcome
from kvpressure.simulation.page import read
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Demand
from kvpressure.simulation.steps import SHARED_RATIO, UnknownError

FOUND_RATIO: Final = 0.9
"""Of the prompt tokens of such sessions, found where nothing is evicted."""
THINK_SECONDS: Final = (5.0, 30.0)
"""Between an answer and the next prompt: the first with which no more is found today than the engine finds."""
ANSWERS: Final = 300
QUESTION: Final = (
    "whether prompts come back with what was said before, which this pool has no room to keep (KV events would tell)"
)


class Returning:
    """An engine whose clients come back, as it is, and what changes do to it."""

    def __init__(self, state: State, now: Outcome) -> None:
        self._state, self._now = state, now
        self._runs: dict[State, Outcome | None] = {}

    def beside(self, now: Outcome, then: Outcome, changes: Sequence[ConfigChange]) -> Outcome | None:
        """Return `then`, which changes make of `now` where every prompt is new, as it would be where they come back."""
        state = applied(self._state, changes)
        if state[1].length_routing is not None:
            return None
        if state not in self._runs:
            self._runs[state] = simulate(*state, answers=ANSWERS)
        outcome = self._runs[state]
        if outcome is None:
            return None
        tokens = outcome.tokens_per_second / self._now.tokens_per_second * now.tokens_per_second
        return replace(
            then,
            tokens_per_second=state[1].busy_ratio * tokens,
            latency_p95=outcome.latency_p95 / self._now.latency_p95 * now.latency_p95,
        )


def returning(known: Known, observed: Observed | None, limits: Limits) -> Returning | None:
    """Return the engine with clients that come back; None where its page speaks against it, or nothing for it."""
    cached = None if observed is None else observed.cached_ratio
    if observed is None or cached is None or cached < SHARED_RATIO or observed.cache.prefix_caching is False:
        return None
    best = best_hit_ratio(observed)
    if best is not None and best - cached < HITS_ERROR:
        return None  # with room for all no more was found
    try:
        page = read(observed, limits, even=True)
        turns = growing_turns(page, FOUND_RATIO)
    except UnknownError:
        return None
    server = replace(known.server, pool_tokens=page.pool)
    for think in THINK_SECONDS:
        clients = round(page.running + page.waiting + think * page.generated / page.seconds / page.outputs.mean)
        sessions = turns.thinking(think / turns.think_seconds)
        demand = Demand(known.demand.requests, max(1, clients), sessions=sessions)
        now = simulate(server, demand, answers=ANSWERS)
        if now is not None and (now.hit_ratio or 0.0) <= cached + HITS_ERROR:
            return Returning((server, demand), now)
    return None
