"""Counters of estimates: they grow by what is known, and never fall."""

import pytest

from kvpressure.signals.estimates import Estimates

LOST, AGAIN = "kv_preempted_tokens_total", "recomputed_prompt_tokens_total"


def test_a_rate_is_added_up_over_the_time_between_polls() -> None:
    estimates = Estimates()
    assert estimates.take(100.0, {"kv_preempted_tokens_per_second": 50.0}) == {LOST: 0.0}
    assert estimates.take(110.0, {"kv_preempted_tokens_per_second": 50.0}) == {LOST: pytest.approx(500.0)}
    grown = estimates.take(112.0, {"kv_preempted_tokens_per_second": 0.0, "recomputed_prompt_tokens_per_second": 3.0})
    assert grown == {LOST: pytest.approx(500.0), AGAIN: pytest.approx(6.0)}


def test_it_stands_still_while_the_rate_is_unknown_and_goes_on_after() -> None:
    estimates = Estimates()
    known = {"recomputed_prompt_tokens_per_second": 10.0}
    estimates.take(0.0, known)
    assert estimates.take(5.0, known) == {AGAIN: pytest.approx(50.0)}
    assert estimates.take(10.0, {}) == {AGAIN: pytest.approx(50.0)}
    assert estimates.take(15.0, known) == {AGAIN: pytest.approx(100.0)}


def test_it_is_absent_until_the_rate_is_known() -> None:
    assert Estimates().take(0.0, {"tokens_per_second": {"prompt": 5.0}}) == {}


@pytest.mark.parametrize("later", [1036.0, 990.0, 1000.0], ids=["after a gap", "clock set back", "same time"])
def test_of_a_time_that_is_not_known_nothing_is_counted(later: float) -> None:
    estimates = Estimates(longest_interval_seconds=35.0)
    estimates.take(1000.0, {"kv_preempted_tokens_per_second": 50.0})
    assert estimates.take(later, {"kv_preempted_tokens_per_second": 50.0}) == {LOST: 0.0}
    assert estimates.take(later + 1.0, {"kv_preempted_tokens_per_second": 50.0}) == {LOST: pytest.approx(50.0)}


def test_what_the_page_counts_is_not_estimated() -> None:
    estimates = Estimates()
    rate = {"computed_prompt_tokens_per_second": 100.0}
    estimates.take(0.0, rate)
    assert estimates.take(2.0, rate) == {"computed_prompt_tokens_total": pytest.approx(200.0)}
    counted = Estimates()
    assert counted.take(0.0, rate | {"computed_prompt_tokens_total": 7000.0}) == {}
    assert counted.take(2.0, rate | {"computed_prompt_tokens_total": 7200.0}) == {}


def test_where_the_page_counts_from_now_on_the_estimate_does_not_stand_over_it() -> None:
    estimates = Estimates()
    rate = {"computed_prompt_tokens_per_second": 10.0}
    estimates.take(0.0, rate)
    assert estimates.take(5.0, rate) == {"computed_prompt_tokens_total": pytest.approx(50.0)}
    assert estimates.take(10.0, {**rate, "computed_prompt_tokens_total": 900.0}) == {}
