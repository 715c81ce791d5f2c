"""Hits of larger pools as measured, beside those simulated of the same: what the simulation is off by is taken off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kvpressure.simulation.outcome import Outcome
from kvpressure.simulation.scheduler import Simulation
from kvpressure.simulation.server import Demand, Server


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
