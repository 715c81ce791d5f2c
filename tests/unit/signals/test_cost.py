"""What trouble costs in tokens."""

from collections import deque

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.incident import Incident
from kvpressure.model.verdict import Cause
from kvpressure.signals.cost import LOST_TOKENS, Cost, HealthyRate
from kvpressure.signals.points import Point

LIMITS = load_thresholds()
GAP = int(LIMITS.verdict.incident_gap_seconds)


class Engine:
    """Polled once a second."""

    def __init__(self) -> None:
        self.cost, self.t, self.tokens = Cost(), 1000.0, 0.0
        self.points: deque[Point] = deque(maxlen=60)

    def spend(
        self,
        seconds: int,
        cause: Cause,
        *,
        demand: float = 8.0,
        rate: float = 100.0,
        unconstrained: float | None = 100.0,
    ) -> None:
        for _ in range(seconds):
            self.t += 1.0
            self.tokens += rate
            gauges = {"running": demand / 2, "waiting": demand / 2}
            self.points.append(Point(self.t, gauges, {"generation_tokens": self.tokens}))
            self.cost.update(self.points, cause, LIMITS, unconstrained)

    @property
    def lost(self) -> object:
        return self.cost.families().get(LOST_TOKENS)

    @property
    def incident(self) -> Incident:
        return self.cost.incident(LIMITS)


@pytest.fixture
def engine() -> Engine:
    made = Engine()
    made.spend(200, Cause.HEALTHY)
    return made


def test_what_is_missing_against_the_healthy_rate_is_lost(engine: Engine):
    assert engine.lost == 0.0
    engine.spend(60, Cause.KV_CACHE_PRESSURE, rate=40.0)
    assert engine.lost == pytest.approx(3600.0)
    incident = engine.incident
    assert (incident.cause, incident.ended) == (Cause.KV_CACHE_PRESSURE, None)
    assert incident.seconds == pytest.approx(60.0)
    assert incident.lost_tokens == pytest.approx(3600.0)
    assert incident.lost_seconds == pytest.approx(36.0)
    assert incident.tokens_per_second == pytest.approx(40.0)


def test_a_burst_within_trouble_pays_back_before_more_is_lost_and_the_counter_never_falls(engine: Engine):
    lost = []
    for rate in (40.0, 160.0, 40.0):
        engine.spend(10, Cause.KV_CACHE_PRESSURE, rate=rate)
        lost.append(engine.lost)
    assert lost == [pytest.approx(600.0)] * 3
    engine.spend(10, Cause.KV_CACHE_PRESSURE, rate=40.0)
    assert engine.lost == pytest.approx(1200.0)


@pytest.mark.parametrize("cause", [Cause.COMPUTE_BOUND, Cause.PAUSED, Cause.UNKNOWN, Cause.IDLE])
def test_an_engine_that_does_all_it_can_or_rests_loses_nothing(engine: Engine, cause: Cause):
    engine.spend(60, cause, rate=10.0)
    assert engine.lost == 0.0
    assert engine.cost.incident(LIMITS) is None


def test_where_it_is_not_known_what_it_would_do_only_the_time_is_reported():
    engine = Engine()
    engine.spend(90, Cause.KV_CACHE_PRESSURE, rate=40.0, unconstrained=None)
    assert engine.lost is None
    assert engine.incident.lost_tokens is None
    assert engine.incident.seconds == pytest.approx(89.0)  # the first poll has none before it


def test_without_a_healthy_time_its_steps_tell_what_room_would_give():
    engine = Engine()
    engine.spend(61, Cause.KV_CACHE_PRESSURE, rate=40.0, unconstrained=140.0)
    assert engine.lost == pytest.approx(6000.0)
    assert engine.incident.lost_tokens == pytest.approx(6000.0)


def test_of_an_engine_that_is_stuck_its_steps_tell_nothing(engine: Engine):
    engine.spend(60, Cause.STUCK, rate=0.0, unconstrained=1e6)
    assert engine.lost == pytest.approx(6000.0)


@pytest.mark.parametrize(("unconstrained", "lost"), [(None, 3600.0), (500.0, 3600.0), (60.0, 1200.0)])
def test_under_a_cap_the_lower_of_both_counts(engine: Engine, unconstrained, lost):
    engine.spend(60, Cause.CONCURRENCY_BOUND, rate=40.0, unconstrained=unconstrained)
    assert engine.lost == pytest.approx(lost)


def test_the_seconds_before_trouble_is_reported_are_not_learned_as_healthy(engine: Engine):
    """At a demand that was never lost, and for longer than a bin needs."""
    engine.spend(20, Cause.HEALTHY, demand=64.0, rate=20.0)
    engine.spend(60, Cause.HOST_BOUND, demand=64.0, rate=20.0)
    assert engine.lost == pytest.approx(60 * 80.0)


def test_a_short_calm_does_not_end_an_incident_and_a_long_one_does(engine: Engine):
    engine.spend(30, Cause.STUCK, rate=0.0)
    began = engine.incident.began
    engine.spend(GAP - 10, Cause.HEALTHY)
    engine.spend(30, Cause.KV_CACHE_PRESSURE, rate=0.0)
    assert engine.incident.began == began
    assert engine.incident.lost_tokens == pytest.approx(6000.0)
    engine.spend(GAP + 10, Cause.HEALTHY)
    assert engine.incident.ended == pytest.approx(engine.t - GAP - 10)
    engine.spend(30, Cause.KV_CACHE_PRESSURE, rate=0.0)
    assert engine.incident.began > began
    assert engine.incident.lost_tokens == pytest.approx(3000.0)
    assert engine.lost == pytest.approx(9000.0)


def test_what_comes_after_is_reported_beside_it(engine: Engine):
    engine.spend(60, Cause.KV_CACHE_PRESSURE, rate=40.0)
    engine.cost.restarted()
    engine.cost.restarted()
    engine.spend(GAP + 30, Cause.HEALTHY, rate=90.0)
    incident = engine.incident
    assert (incident.restarts, incident.restarted) == (2, True)
    assert incident.since.tokens_per_second == pytest.approx(90.0)
    assert incident.earned_tokens_per_second == pytest.approx(50.0)


def test_less_after_it_is_no_gain_and_may_be_less_demand(engine: Engine):
    engine.spend(60, Cause.KV_CACHE_PRESSURE, rate=40.0)
    engine.spend(GAP + 30, Cause.HEALTHY, demand=1.0, rate=10.0)
    assert engine.incident.earned_tokens_per_second is None


def test_a_clock_that_is_set_back_starts_anew(engine: Engine):
    engine.spend(30, Cause.KV_CACHE_PRESSURE, rate=0.0)
    engine.t -= 3600.0
    engine.points.clear()
    engine.spend(31, Cause.KV_CACHE_PRESSURE, rate=0.0)
    assert engine.incident.seconds == pytest.approx(30.0)
    assert engine.lost == pytest.approx(6000.0)


def test_a_time_that_nobody_looked_at_is_not_counted(engine: Engine):
    engine.spend(10, Cause.KV_CACHE_PRESSURE, rate=0.0)
    engine.t += 50.0
    engine.spend(10, Cause.KV_CACHE_PRESSURE, rate=0.0)
    assert engine.lost == pytest.approx(1900.0)


# What an engine does healthy at each demand.


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
