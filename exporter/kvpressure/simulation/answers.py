"""How many answers of a simulation are counted, and how many before them are not."""

from __future__ import annotations

from typing import Final

from kvpressure.simulation.server import Demand

WARM_UP_TURNS: Final = 2.0
"""Answers per running request that are not counted at the start, when all clients begin at once."""
COARSE_TURNS: Final = 1.0
"""The same where fewer answers are counted than usual."""
COARSE_ANSWERS: Final = 180
"""For what is simulated otherwise than is likeliest: enough to be set beside itself."""
WARM_UP_ANSWERS: Final = 20
ANSWERS: Final = 240
"""Least number of counted answers; with many clients twice their number."""
SESSION_WARM_UP_TURNS: Final = 6.0
SESSION_ANSWERS: Final = 1200
"""Near the cliff hits swing from minute to minute."""
SESSION_ANSWERS_EACH: Final = 16
COARSE_SESSION_ANSWERS: Final = 600
COARSE_SESSION_ANSWERS_EACH: Final = 10


def counted_answers(demand: Demand, answers: int | None) -> tuple[float, float]:
    """Return how many are not counted at the start, and how many then are at least; `answers` where fewer suffice."""
    least = answers or (ANSWERS if demand.sessions is None else SESSION_ANSWERS)
    if demand.sessions is not None:
        each = SESSION_ANSWERS_EACH if least >= SESSION_ANSWERS else COARSE_SESSION_ANSWERS_EACH
        return SESSION_WARM_UP_TURNS * demand.clients, max(least, each * demand.clients)
    turns = WARM_UP_TURNS if least >= ANSWERS else COARSE_TURNS
    return max(WARM_UP_ANSWERS, turns * demand.clients), max(least, turns * demand.clients)
