"""Hits of the cache: with nothing evicted, and of larger pools.

Those are measured beside what is simulated of the same: what the simulation is off by is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.view import Observed
from kvpressure.simulation.outcome import Outcome
from kvpressure.simulation.scheduler import Simulation
from kvpressure.simulation.server import Demand, Server

LEAST_TURNOVER_FACTOR: Final = 8.0
"""Times today's turnover, from which on what was found is believed to be all that can be."""


def has_sessions(observed: Observed | None, thresholds: Thresholds) -> bool:
    """Return whether much more was found in the cache than is now, or would be in a larger one."""
    if observed is None or observed.minutes is None or observed.minutes.hit_ratio >= 1.0:
        return False
    now, best = observed.minutes.hit_ratio, best_hit_ratio(observed)
    return best is not None and (best - now) / (1.0 - now) >= thresholds.eviction.recomputed_min_ratio


def best_hit_ratio(observed: Observed) -> float | None:
    """Return the share of the prompt tokens that would be found if nothing were evicted; None where not known."""
    ratios, before = [hits.ratio for hits in observed.hits_by_pool], observed.hit_ratio_before
    reached = max((hits.factor for hits in observed.hits_by_pool), default=0.0) >= LEAST_TURNOVER_FACTOR
    if not reached and before is not None and (observed.turnover_before_factor or 0.0) >= LEAST_TURNOVER_FACTOR:
        ratios.append(before)
    return max(ratios, default=None)


@dataclass(frozen=True, slots=True)
class MeasuredHits:
    """`off` is by how much hits are measured above the simulated ones, by the tokens of cache for each session.

    The least first; `best` are the hits if nothing were evicted.
    """

    off: tuple[tuple[float, float], ...]
    best: float

    def corrected(self, outcome: Outcome, server: Server, demand: Demand) -> Outcome:
        """Return an outcome whose change of the hits is simulated, and what they change from measured."""
        if outcome.hit_ratio is None:
            return outcome
        each = (server.pool_tokens + server.tier_tokens) / max(1, demand.clients)
        hits = min(max(self.best, outcome.hit_ratio), max(0.0, outcome.hit_ratio + self._off_at(each)))
        return replace(outcome, hit_ratio=hits)

    def _off_at(self, each: float) -> float:
        """Return the value on a line between two pools, by the logarithm of their size; beyond the ends as there."""
        if each <= self.off[0][0]:
            return self.off[0][1]
        for (low, before), (high, after) in pairwise(self.off):
            if each <= high:
                return before + (after - before) * math.log(each / low) / math.log(high / low)
        return self.off[-1][1]


def measured_hits(simulation: Simulation, pools: Sequence[float], measured: Sequence[float]) -> MeasuredHits | None:
    """Return the correction for an engine by pools in tokens, the least first; None of one pool, which says no more.

    The simulation of it goes on for as long as what is predicted is simulated.
    """
    outcome, clients = simulation.outcome() if len(pools) > 1 else None, simulation.demand.clients
    if outcome is None or not outcome.hits_by_pool:
        return None
    off = (ours - theirs for ours, theirs in zip(measured, outcome.hits_by_pool, strict=True))
    return MeasuredHits(tuple(zip((pool / clients for pool in pools), off, strict=True)), max(measured))
