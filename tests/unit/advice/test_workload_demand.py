from __future__ import annotations

import pytest

from kvpressure.advice.workload import demand_replicas, desired_replicas
from kvpressure.config.thresholds import load_thresholds

LIMITS = load_thresholds()
TARGET = LIMITS.scaling.target_ratio


def test_shares_of_replicas_add_up_to_replicas():
    told = [("a", {"kv_tokens": 0.9, "sequences": 0.2}), ("b", {"kv_tokens": 0.7, "sequences": 0.3})]
    assert demand_replicas(told) == pytest.approx({"kv_tokens": 1.6, "sequences": 0.5})


def test_requests_that_come_faster_than_one_serves_take_as_many_as_leave_the_margin_free():
    for arriving, served, count in ((12, 7.4, 2), (3.6, 1.3, 4), (12, 7.0, 3), (6, 7.4, 1), (6.5, 7.4, 2)):
        assert desired_replicas({"kv_tokens": arriving / served}, LIMITS) == count


def test_ranks_behind_one_address_are_one_replica_and_the_fullest_counts():
    told = [("a", {"kv_tokens": 0.2}), ("a", {"kv_tokens": 1.4}), ("b", {"kv_tokens": 0.2})]
    assert demand_replicas(told) == pytest.approx({"kv_tokens": 1.6})


def test_the_constraint_that_binds_decides():
    assert desired_replicas({"kv_tokens": 0.1, "sequences": 1.9 * TARGET, "prefill": 0.5}, LIMITS) == 2


def test_a_replica_that_tells_nothing_counts_as_the_others_do():
    assert demand_replicas([("a", {"kv_tokens": 1.1}), ("b", {})]) == pytest.approx({"kv_tokens": 2.2})
    told = [("a", {"kv_tokens": 1.1}), ("b", {"sequences": 0.1})]
    assert demand_replicas(told) == pytest.approx({"kv_tokens": 1.1, "sequences": 0.1})


def test_no_demand_is_one_replica_and_nothing_known_is_no_number():
    assert desired_replicas({"kv_tokens": 0.0}, LIMITS) == 1
    assert desired_replicas({}, LIMITS) is None
    assert demand_replicas([]) == {}


def test_more_are_requested_at_once_up_to_twice_as_many_as_before_or_four_more():
    assert desired_replicas({"kv_tokens": 34.0}, LIMITS) == 5
    assert desired_replicas({"kv_tokens": 34.0}, LIMITS, 9) == 18
