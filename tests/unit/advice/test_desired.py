import pytest

from kvpressure.advice.desired import ReplicaReading, demand_replicas, desired_replicas, required_replicas
from kvpressure.config.thresholds import load_thresholds

LIMITS = load_thresholds()
TARGET = LIMITS.scaling.target_ratio
MOST = LIMITS.with_values(scaling_down_held_ratio=0.8)


def reading(replica: str, kv: float | None = None, *, lost: bool = False, **others: float) -> ReplicaReading:
    demand = others if kv is None else {"kv_tokens": kv, **others}
    return ReplicaReading(replica, demand, lost)


def test_shares_of_replicas_add_up_to_replicas():
    readings = [reading("a", 0.9, sequences=0.2), reading("b", 0.7, sequences=0.3)]
    assert demand_replicas(readings) == pytest.approx({"kv_tokens": 1.6, "sequences": 0.5})
    assert required_replicas(readings, LIMITS) == pytest.approx(1.6 / TARGET)
    assert desired_replicas(readings, LIMITS) == 2


def test_requests_that_come_faster_than_one_serves_take_as_many_as_leave_the_margin_free():
    for arriving, served, count in ((12, 7.4, 2), (3.6, 1.3, 4), (12, 7.0, 3), (6, 7.4, 1), (6.5, 7.4, 2)):
        assert desired_replicas([reading("a", arriving / served)], LIMITS) == count


def test_ranks_behind_one_address_are_one_replica_and_the_fullest_counts():
    readings = [reading("a", 0.2), reading("a", 1.4), reading("b", 0.2)]
    assert demand_replicas(readings) == pytest.approx({"kv_tokens": 1.6})


def test_the_constraint_that_binds_decides():
    assert required_replicas([reading("a", 0.1, sequences=2.4, prefill=0.5)], LIMITS) == pytest.approx(2.4 / TARGET)


def test_a_replica_that_tells_nothing_counts_as_the_others_do():
    assert demand_replicas([reading("a", 1.1), reading("b")]) == pytest.approx({"kv_tokens": 2.2})
    new = reading("b", sequences=0.1)
    assert demand_replicas([reading("a", 1.1), new]) == pytest.approx({"kv_tokens": 1.1, "sequences": 0.1})


def test_a_lost_replica_holds_nothing_and_another_is_asked_for_in_its_place():
    readings = [reading("a", 9.0, lost=True), reading("b", 0.5)]
    assert demand_replicas(readings) == pytest.approx({"kv_tokens": 0.5})
    assert desired_replicas(readings, LIMITS) == 2


def test_one_lost_rank_makes_its_replica_a_lost_one():
    readings = [reading("a", 0.4, lost=True), reading("a", 0.4), reading("b", 0.5)]
    assert desired_replicas(readings, LIMITS) == 2


def test_no_demand_is_one_replica_and_nothing_known_is_no_number():
    assert desired_replicas([reading("a", 0.0)], LIMITS) == 1
    assert desired_replicas([reading("a")], LIMITS) is None
    assert desired_replicas([], LIMITS) is None


def test_fewer_are_asked_for_once_fewer_would_have_held_most_of_the_last_minutes():
    now = [reading("a", 0.3), reading("b", 0.3)]
    assert desired_replicas(now, MOST, [3.2] * 5 + [0.8] * 14) == 4
    assert desired_replicas(now, MOST, [3.2] * 3 + [0.8] * 16) == 1
    assert desired_replicas(now, LIMITS, [0.8, 0.9]) == 1
    assert desired_replicas([], LIMITS, [1.7]) == 2


def test_more_are_requested_at_once_up_to_twice_as_many_as_before_or_four_more():
    assert desired_replicas([reading("a", 1.6 * TARGET), reading("b", 1.6 * TARGET)], LIMITS, [0.8] * 19) == 4
    assert desired_replicas([reading("a", 34.0)], LIMITS) == 5
    assert desired_replicas([reading("a", 34.0)], LIMITS, before=9) == 18
    eight = [reading(name, 34.0) for name in "abcdefgh"]
    assert desired_replicas(eight, LIMITS, before=2) == 6  # they serve already, and five minutes ago two did


def test_half_of_the_most_that_was_requested_lately_stays():
    assert desired_replicas([reading("a", 0.1)], LIMITS, [0.1] * 19, highest_recent=7) == 4
    assert desired_replicas([reading("a", 3.9 * TARGET)], LIMITS, [0.1] * 19, before=3, highest_recent=6) == 4
    assert desired_replicas([reading("a")], LIMITS, highest_recent=7) is None


def test_what_was_asked_for_lately_is_counted_as_prometheus_counts_it():
    # quantile_over_time(0.8, ...) of 1, 2, 3: rank 0.8 * 2 is 1.6, between 2 and 3
    assert desired_replicas([], MOST, [1.0, 2.0, 3.0]) == 3
    assert desired_replicas([], MOST, [0.0, 1.0, 2.0, 2.0, 2.4, 2.9]) == 3
    assert desired_replicas([], MOST, [0.0, 1.0, 2.0, 2.0, 2.0, 2.9]) == 2


def test_without_a_look_at_all_of_the_last_minutes_no_replica_that_serves_is_given_up():
    now = [reading("a", 0.1), reading("b", 0.1), reading("c", 0.1, lost=True)]
    assert desired_replicas(now, LIMITS, whole=False) == 3
    assert desired_replicas([reading("a", 1.4)], LIMITS, whole=False) == 2
