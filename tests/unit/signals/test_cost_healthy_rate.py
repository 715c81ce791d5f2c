"""What an engine does healthy at each demand."""

from __future__ import annotations

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.signals.cost import HealthyRate

LIMITS = load_thresholds()


def learned(**seconds_by_demand: tuple[float, float]) -> HealthyRate:
    """`d4=(30, 100)`: 30 s at 100 tokens/s with 4 requests."""
    rate = HealthyRate()
    for name, (seconds, tokens) in seconds_by_demand.items():
        for _ in range(int(seconds)):
            rate.learn(float(name[1:]), tokens, 1.0, LIMITS)
    return rate


@pytest.mark.parametrize(
    ("healthy", "demand", "rate"),
    [
        pytest.param({"d4": (59, 100.0)}, 4.0, None, id="less than a minute"),
        pytest.param({"d4": (60, 100.0)}, 4.0, 100.0, id="a healthy minute"),
        pytest.param({"d4": (60, 100.0), "d16": (60, 300.0)}, 10.0, 200.0, id="between two demands"),
        pytest.param({"d4": (60, 100.0), "d16": (60, 300.0)}, 2.0, 50.0, id="a share below the lowest"),
        pytest.param(
            {"d4": (60, 100.0), "d16": (60, 300.0), "d32": (60, 280.0)}, 500.0, 300.0, id="no more beyond the highest"
        ),
        pytest.param({"d4": (60, 100.0), "d64": (9, 5000.0)}, 64.0, 100.0, id="a few seconds are chance"),
        pytest.param({"d4": (100, 0.0)}, 4.0, None, id="a model that generates nothing"),
    ],
)
def test_a_healthy_rate_is_that_of_the_demand(healthy, demand, rate):
    assert learned(**healthy).at(demand, LIMITS) == (None if rate is None else pytest.approx(rate))


def test_older_times_count_for_less():
    rate = HealthyRate()
    for tokens in (100.0, 200.0):
        for _ in range(int(2 * LIMITS.baseline.half_life_seconds)):
            rate.learn(4.0, tokens, 1.0, LIMITS)
    assert rate.at(4.0, LIMITS) == pytest.approx(175.0, rel=0.06)
