"""How long sessions think and how many there are: what makes the simulated cache find what the engine's own does."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from kvpressure.simulation.demand import requests
from kvpressure.simulation.outcome import Outcome
from kvpressure.simulation.page import Page
from kvpressure.simulation.scheduler import Simulation
from kvpressure.simulation.server import Demand, Server
from kvpressure.simulation.sessions import Sessions
from kvpressure.simulation.steps import UnknownError

MAX_CLIENTS: Final = 1_000
SHORTEST_SECONDS: Final = 0.1
BISECTIONS: Final = 9
BISECTIONS_AGAIN: Final = 6
AGAIN_FACTOR: Final = 2.0
"""Another fit begins so far around the one before it."""
FITS: Final = 3
CLOSE_ENOUGH: Final = 0.01
"""Of the hits, on average: so far off they are by chance from one run to another."""
FIT_ANSWERS: Final = 600
COARSE_FIT_ANSWERS: Final = 300
"""For an engine that is only set beside the likeliest."""
FITTED_RATIO: Final = 0.03
MAX_SCALE: Final = 2.0
PACE_WEIGHT: Final = 0.1
"""Of a factor e in pace, in hits: by hits alone an engine that stands in a queue may be chosen."""


@dataclass(frozen=True, slots=True)
class Target:
    """Hits to be reproduced, by the size of the cache in tokens; `best` if nothing were evicted."""

    pools: tuple[float, ...]
    hits: tuple[float, ...]
    best: float


@dataclass(frozen=True, slots=True)
class Fit:
    """An engine with sessions, and how far it is from the page."""

    server: Server
    demand: Demand
    simulation: Simulation
    outcome: Outcome
    error: float
    """Root mean square, of hits."""
    pace: float
    """Tokens a second for each request that runs, over those of the engine."""

    @property
    def misfit(self) -> float:
        """Return how far it is off in hits and pace."""
        return self.error + PACE_WEIGHT * abs(math.log(self.pace))

    @property
    def think_seconds(self) -> float:
        """Return the mean think time."""
        return 1.0 if self.demand.sessions is None else self.demand.sessions.think_seconds


class SessionFit:
    """The engine of one page, with sessions of different kinds; what was simulated is not simulated again."""

    def __init__(self, page: Page, target: Target, answers: int = FIT_ANSWERS) -> None:
        self._page, self._target, self._answers = page, target, answers
        self._like = tuple(requests(page.prompts, page.outputs, 0.0, 0.0))
        self._tried: dict[tuple[Server, Sessions, int], Fit] = {}

    def best(self, server: Server, shape: Sessions, known_fit: Fit | None = None) -> Fit:
        """Fit think times and the number of sessions to the hits, then the steps to how long they take, and again."""
        fit = best = known_fit or self.think(server, shape)
        for _ in range(FITS - 1):
            if abs(fit.pace - 1) < FITTED_RATIO:
                break
            steps = fit.server.steps.scaled(min(MAX_SCALE, max(1 / MAX_SCALE, fit.pace)))
            fit = self.think(replace(server, steps=steps), shape, fit.think_seconds)
            best = min(best, fit, key=lambda fit: fit.misfit)
        return best

    def think(self, server: Server, shape: Sessions, around: float | None = None) -> Fit:
        """Bisect the mean think time: the longer, the more sessions there are at the same rate, and the fewer hits."""
        page, target = self._page, self._target
        rate, present = page.generated / page.seconds / page.outputs.mean, page.running + page.waiting
        low, high = SHORTEST_SECONDS, MAX_CLIENTS / rate
        if around is not None:
            low, high = around / AGAIN_FACTOR, around * AGAIN_FACTOR
        fits: list[Fit] = []
        more = less = 0.0
        for _ in range(BISECTIONS if around is None else BISECTIONS_AGAIN):
            # Between two that are known, hits fall about evenly with the logarithm; never too near an end to move.
            share = min(0.85, max(0.15, more / (more + less))) if more and less else 0.5
            think = low * (high / low) ** share
            fits.append(
                self._fit(server, shape.thinking(think / shape.think_seconds), max(1, round(rate * think + present)))
            )
            off = sum(fits[-1].outcome.hits_by_pool) - sum(target.hits)
            if abs(off) <= CLOSE_ENOUGH * len(target.hits):
                break
            low, high, more, less = (think, high, off, less) if off > 0 else (low, think, more, -off)
        return min(fits, key=lambda fit: fit.error)

    def _fit(self, server: Server, sessions: Sessions, clients: int) -> Fit:
        key = server, sessions, clients
        if key not in self._tried:
            self._tried[key] = self._simulated(server, Demand(self._like, clients, sessions=sessions))
        return self._tried[key]

    def _simulated(self, server: Server, demand: Demand) -> Fit:
        page, target = self._page, self._target
        simulation = Simulation(server, demand, target.pools)
        outcome = simulation.outcome(answers=self._answers)
        if outcome is None or not outcome.running or not outcome.hits_by_pool:
            raise UnknownError("the simulation completes no request")
        squares = [(ours - theirs) ** 2 for ours, theirs in zip(outcome.hits_by_pool, target.hits, strict=True)]
        pace = outcome.tokens_per_second / outcome.running / (page.generated / page.seconds / page.running)
        return Fit(server, demand, simulation, outcome, math.sqrt(sum(squares) / len(squares)), pace)
