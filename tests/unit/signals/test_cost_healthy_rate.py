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


def test_nothing_is_known_before_a_healthy_minute():
    assert learned(d4=(59, 100.0)).at(4.0, LIMITS) is None
    assert learned(d4=(60, 100.0)).at(4.0, LIMITS) == pytest.approx(100.0)


def test_between_two_demands_it_lies_between_and_below_the_lowest_it_is_a_share():
    rate = learned(d4=(60, 100.0), d16=(60, 300.0))
    assert rate.at(10.0, LIMITS) == pytest.approx(200.0)
    assert rate.at(2.0, LIMITS) == pytest.approx(50.0)


def test_beyond_the_highest_demand_the_highest_rate_counts_and_no_more():
    rate = learned(d4=(60, 100.0), d16=(60, 300.0), d32=(60, 280.0))
    assert rate.at(500.0, LIMITS) == pytest.approx(300.0)


def test_a_few_seconds_at_a_demand_tell_chance():
    rate = learned(d4=(60, 100.0), d64=(9, 5000.0))
    assert rate.at(64.0, LIMITS) == pytest.approx(100.0)


def test_a_model_that_generates_nothing_has_no_rate():
    assert learned(d4=(100, 0.0)).at(4.0, LIMITS) is None


def test_older_times_count_for_less():
    rate = HealthyRate()
    for tokens in (100.0, 200.0):
        for _ in range(int(2 * LIMITS.baseline.half_life_seconds)):
            rate.learn(4.0, tokens, 1.0, LIMITS)
    assert rate.at(4.0, LIMITS) == pytest.approx(175.0, rel=0.06)
