from dataclasses import replace

import pytest

from kvpressure.simulation.hits import MeasuredHits, measured_hits
from kvpressure.simulation.scheduler import Simulation, simulate
from kvpressure.simulation.server import Demand, RequestShape, Server, StepSeconds
from kvpressure.simulation.sessions import Sessions

POOLS, MEASURED, SIMULATED = (40_000.0, 80_000.0, 160_000.0), (0.2, 0.5, 0.9), (0.3, 0.4, 0.9)
OFF = MeasuredHits(((2_000.0, -0.1), (4_000.0, 0.1), (8_000.0, 0.0)), 0.9)
SERVER = Server(40_000.0, StepSeconds(0.03, 0.0, 1 / 16_000))
DEMAND = Demand(
    (RequestShape(4_000, 4_000, 50),),
    clients=20,
    sessions=Sessions((5.0, 20.0), (2_000, 2_000), (500, 500), (50, 50), (10, 10)),
)


def corrected(hits: float, *, pool: float = 40_000.0, tier: float = 0.0, clients: int = 20) -> float:
    outcome = simulate(SERVER, DEMAND, answers=50)
    found = OFF.corrected(
        replace(outcome, hit_ratio=hits),
        replace(SERVER, pool_tokens=pool, tier_tokens=tier),
        replace(DEMAND, clients=clients),
    )
    return found.hit_ratio


def test_where_a_pool_was_measured_the_simulation_takes_its_hits():
    for pool, measured, simulated in zip(POOLS, MEASURED, SIMULATED, strict=True):
        assert corrected(simulated, pool=pool) == pytest.approx(measured)


def test_fewer_sessions_and_a_tier_are_as_a_larger_pool():
    assert corrected(0.4, clients=10) == corrected(0.4, tier=40_000) == corrected(0.4, pool=80_000) == 0.5


@pytest.mark.parametrize(
    ("hits", "pool", "expected"),
    [(0.35, 40_000 * 2**0.5, 0.35), (0.05, 40_000.0, 0.0), (0.85, 80_000, 0.9), (0.95, 400_000, 0.95)],
    ids=["off by what lies between two pools", "none", "the best that was measured", "the best that was simulated"],
)
def test_hits_are_off_as_at_pools_around_and_stay_between_none_and_the_best(hits, pool, expected):
    assert corrected(hits, pool=pool) == pytest.approx(expected)


def test_what_is_no_session_has_no_hits_to_correct():
    outcome = simulate(SERVER, replace(DEMAND, sessions=None), answers=50)
    assert OFF.corrected(outcome, SERVER, DEMAND) is outcome


def test_an_engine_whose_hits_were_measured_is_predicted_to_have_them():
    found, outcome = measured_hits(Simulation(SERVER, DEMAND, POOLS), POOLS, MEASURED), simulate(SERVER, DEMAND)
    assert found.corrected(outcome, SERVER, DEMAND).hit_ratio == pytest.approx(0.2, abs=0.02)


def test_one_pool_tells_of_no_other():
    assert measured_hits(Simulation(SERVER, DEMAND, POOLS[:1]), POOLS[:1], MEASURED[:1]) is None
