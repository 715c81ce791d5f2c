"""The weights of the score are thresholds: what an operator writes is what counts."""

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.diagnosis import score as scoring
from kvpressure.diagnosis.facts import Inputs
from kvpressure.diagnosis.precedence import BY_ID
from kvpressure.diagnosis.score import confidence as scoring_confidence
from tests.support.verdicts import facts
from tests.support.verdicts import made as polls_with

HALF_WAY = {
    "demand": 10.0,
    "waiting": 5.0,
    "waiting_ratio": 1.0,
    "kv_usage_ratio": 0.9,
    "blocked_ratio": 9 / 21,
    "burst_count": 2,
    "request_ratio": 0.1,
    "busy": True,
}
DERIVED = {"latency_inflation_ratio": {"e2e": 2.5}, "memory_high_compute_low_ratio": 0.5}


def made(override: str = "", **recent: float) -> Inputs:
    return polls_with(HALF_WAY | recent, DERIVED, load_thresholds(override))


def test_the_score_is_the_sum_of_its_weights_written_out() -> None:
    core = 1 - (1 - 0.9 * 9 / 21 / 0.8) * (1 - 0.8 * 0.1 / 0.2) * (1 - 0.8 * 0.5)
    cost = 1 - (1 - 0.6 * 0.5) * (1 - 0.6 * 1.5 / 3) * (1 - 0.6 * 0.5)
    assert scoring.score(made()) == pytest.approx(core * (0.8 + 0.2 * cost))


@pytest.mark.parametrize(
    ("override", "raises"),
    [
        ("score_blocked_full_factor: 2", False),
        ("score_blocked_weight_ratio: 1", True),
        ("score_preempted_full_factor: 40", False),
        ("score_preempted_weight_ratio: 0.9", True),
        ("score_saturated_weight_ratio: 0.9", True),
        ("score_inflation_full_factor: 3", False),
        ("score_cost_weight_ratio: 0.9", True),
        ("score_cost_share_ratio: 0.5", False),
    ],
)
def test_each_weight_of_the_score_is_the_one_an_operator_gives(override: str, raises: bool) -> None:
    before, after = scoring.score(made()), scoring.score(made(override))
    assert (after > before) is raises
    assert after != before


def of_kv(inputs: Inputs) -> float:
    return scoring_confidence(BY_ID["kv.admission"], facts(inputs))


def confidence(override: str = "") -> float:
    inputs = made(override, blocked_ratio=0.9)
    return of_kv(inputs)


def test_the_weights_of_confidence_are_those_an_operator_gives() -> None:
    assert (
        confidence("confidence_unknown_weight_ratio: 0")
        > confidence()
        > confidence("confidence_unknown_weight_ratio: 1")
    )
    assert confidence("confidence_core_weight_factor: 10") > confidence()


def test_nothing_known_is_no_confidence_even_where_it_counts_nothing() -> None:
    nothing = polls_with({"polls": 0}, thresholds=load_thresholds("confidence_unknown_weight_ratio: 0"))
    assert of_kv(nothing) == 0.0


@pytest.mark.parametrize(("usage", "higher"), [(0.99, False), (1.0, True)])
def test_a_limit_of_one_needs_the_last_block(usage: float, higher: bool) -> None:
    before = scoring.score(made("kv_saturated_min_ratio: 1", blocked_ratio=1.0, kv_usage_ratio=0.6))
    after = scoring.score(made("kv_saturated_min_ratio: 1", blocked_ratio=1.0, kv_usage_ratio=usage))
    assert (after > before) is higher
