"""Episodes of half an hour, for the alerts that look back on a quarter of an hour or count restarts.

Each cause at its clearest and two of its hard cases, with the middle made longer; and servers that start again, once or
several times within ten minutes. Seeds are others than those of the short episodes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from bench.simulator.load import Label, Phase
from bench.simulator.scenarios import CASES, CAUSES, RESTART_SECONDS, calm, case, engine_of, episode
from bench.simulator.service import Scenario

SECONDS: Final = 1500.0
"""Of the cause: ten minutes of an average, five of a `for`, and ten in which to see it fire."""
FIRST_SEED: Final = 200
RESTARTS: Final = "restarts"
"""What an episode of servers that start again is about, in place of a cause."""
BETWEEN_SECONDS: Final = (60.0, 240.0)
HEALTHY_AGAIN_SECONDS: Final = 900.0


def seeds(*, quick: bool = False) -> Iterator[tuple[str, int]]:
    """What each long episode is about and its seed: the even ones are clear, the odd ones hard cases."""
    for cause in CAUSES:
        # Healthy has the most ways to be mistaken for something: each of its cases.
        cases = len(CASES[cause]) if cause == "healthy" else 2
        for number in range(1 if quick else cases):
            yield cause, FIRST_SEED + 2 * number + 1
        yield cause, FIRST_SEED
    for seed in range(FIRST_SEED, FIRST_SEED + (2 if quick else 8)):
        yield RESTARTS, seed


def long_scenario(about: str, seed: int) -> Scenario:
    """The scenario of that seed."""
    if about == RESTARTS:
        return _restarts(seed)
    cause = next(known for known in CAUSES if known == about)
    scenario = _case(cause, seed) if seed % 2 else episode(cause, seed)
    given = sum(phase.seconds for phase in scenario.phases if phase.label == cause)
    phases = (
        replace(phase, seconds=phase.seconds * SECONDS / given) if phase.label == cause else phase
        for phase in scenario.phases
    )
    return replace(scenario, phases=tuple(phases))


def _case(cause: Label, seed: int) -> Scenario:
    """The cases of a cause by turns, over the odd seeds."""
    turn = (seed - FIRST_SEED) // 2
    return case(cause, len(CASES[cause]) * FIRST_SEED + turn)


def _restarts(seed: int) -> Scenario:
    """A healthy server that starts again once (even seeds) or two to four times within ten minutes."""
    rng = random.Random(f"{RESTARTS}/{seed}")
    engine = engine_of(rng)
    usual, restart = (calm(rng, engine),), Phase("restarting", RESTART_SECONDS, fault="restart")
    phases = [Phase("healthy", 300.0, usual), restart]
    for _ in range(rng.randint(1, 3) if seed % 2 else 0):
        phases += [Phase("healthy", rng.uniform(*BETWEEN_SECONDS), usual), restart]
    return Scenario(f"{RESTARTS}-{seed}", engine, (*phases, Phase("healthy", HEALTHY_AGAIN_SECONDS, usual)))


def restart_times(scenario: Scenario) -> tuple[float, ...]:
    """Seconds of the scenario at which its server starts again."""
    found, begin = [], 0.0
    for phase in scenario.phases:
        begin += phase.seconds
        if phase.fault == "restart":
            found.append(begin)
    return tuple(found)
