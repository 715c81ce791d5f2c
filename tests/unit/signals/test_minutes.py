import pytest

from kvpressure.model.samples import EngineSample
from kvpressure.model.view import PoolHits
from kvpressure.signals.minutes import SECONDS, LongMeans, PoolMeans
from kvpressure.signals.windows import EngineWindow
from tests.support.engines import CACHE


def read(seconds: int, **counters: float) -> LongMeans:
    """After so many polls, a second apart, of counters that grow by so much a second."""
    means = LongMeans()
    for t in range(1, seconds + 1):
        means.take(poll(t, **counters))
    return means


def poll(at: int, **counters: float) -> EngineWindow:
    rates = {"generation_tokens": 50.0, "prefix_queries": 1_000.0, "prefix_hits": 200.0} | counters
    made = EngineWindow(60, 600)
    gauges = {"running": 4.0 if at % 2 else 0.0, "waiting": 1.0}
    made.add(float(at), EngineSample("m", "0", gauges, {name: rate * at for name, rate in rates.items()}, {}, CACHE))
    return made


def test_means_are_over_minutes():
    found = read(200, steps=20.0).minutes()
    assert found.tokens_per_second == pytest.approx(50.0)
    assert found.hit_ratio == pytest.approx(0.2)
    assert found.running == pytest.approx(2.0, rel=0.02)
    assert found.waiting == pytest.approx(1.0)


def test_polls_without_gauges_are_no_time_without_requests():
    """As on the page of Ray's agent, on which a gauge stands only after each report."""
    means = LongMeans()
    for t in range(1, 201):
        made = EngineWindow(60, 600)
        gauges = {"running": 4.0, "waiting": 1.0} if t % 10 == 1 else {}
        counters = {"generation_tokens": 50.0 * t, "prefix_queries": 9.0 * t, "prefix_hits": 2.0 * t}
        made.add(float(t), EngineSample("m", "0", gauges, counters, {}, CACHE))
        means.take(made)
    found = means.minutes()
    assert (found.running, found.waiting) == pytest.approx((4.0, 1.0))


def test_intervals_have_the_seconds_in_which_requests_ran():
    found = read(200, steps=20.0, finished=0.5).minutes()
    assert len(found.intervals) == 19
    assert found.intervals[3].seconds == pytest.approx(5.0)
    assert found.intervals[3].steps == pytest.approx(200.0)
    assert found.intervals[3].finished == pytest.approx(5.0)
    assert found.intervals[3].computed is None


def test_only_so_many_minutes_are_kept():
    found = read(2_000).minutes()
    assert SECONDS <= found.seconds <= SECONDS + 20
    assert len(found.intervals) <= 31


def test_less_than_a_minute_or_a_gap_tells_nothing():
    assert LongMeans().minutes() is None
    assert read(30).minutes() is None
    means = read(200)
    means.take(poll(400))
    assert means.minutes() is None
    means = read(200)
    means.forget()
    assert means.minutes() is None


def test_counters_that_begin_again_are_another_process():
    means = read(200)
    means.take(poll(3))
    assert means.minutes() is None


def test_where_nothing_is_looked_up_nothing_is_reported():
    assert read(200, prefix_queries=0.0, prefix_hits=0.0).minutes() is None


def test_hits_of_larger_pools_are_means_over_minutes_of_pools_that_are_always_reported():
    means = PoolMeans()
    for t in range(600):
        means.take(float(t), {2.0: 0.2 if t < 450 else 0.4, 1.5: 0.1} | ({} if t < 400 else {8.0: 0.9}))
    assert [one.factor for one in means.hits()] == [1.5, 2.0]
    assert means.hits()[1].ratio == pytest.approx(0.3, abs=0.01)
    means.take(601.0, {})
    assert means.hits() == ()
    means.take(602.0, {2.0: 0.5})
    assert means.hits() == (PoolHits(2.0, 0.5),)
    means.take(900.0, {2.0: 0.7})
    assert means.hits() == (PoolHits(2.0, 0.7),)
