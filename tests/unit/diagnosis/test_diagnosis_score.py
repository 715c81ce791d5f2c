import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.diagnosis import score as scoring
from kvpressure.diagnosis.diagnose import Diagnostician
from kvpressure.diagnosis.precedence import judge
from kvpressure.diagnosis.symptoms import NAMES, judge_all
from kvpressure.exposition.families import diagnosis_families
from kvpressure.model.verdict import Cause, Stage
from kvpressure.signals.evidence import OutsideEvidence
from tests.support.calm import BLOCKED, QUEUE, inputs, with_gpu
from tests.support.verdicts import BUSY, THRESHOLDS, facts
from tests.support.verdicts import made as polls_with

pytestmark = pytest.mark.recorded


def test_every_symptom_is_always_judged_in_the_fixed_order():
    assert tuple(judge_all(inputs())) == NAMES
    assert len(set(NAMES)) == 15


def test_without_gpu_pods_and_logs_their_symptoms_are_unknown_not_false():
    found = judge_all(inputs())
    unknown = {name for name, evidence in found.items() if evidence.state is None}
    assert {"gpu_memory_high", "gpu_compute_low", "memory_rising", "host_oom", "device_oom", "cpu_pressed"} <= unknown
    families = diagnosis_families(Diagnostician().diagnose(0.0, inputs()))
    assert not unknown & set(families["symptom"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "demand", "healthy", "expected"),
    [
        (2.3, 12.0, None, True),
        (2.3, 12.0, 20.0, True),
        (2.0, 2.0, 20.0, False),
        (5.0, 30.0, 20.0, True),
        (5.0, 30.0, None, None),
        (25.0, 30.0, 20.0, False),
        (14.0, 30.0, 10.0, False),
    ],
)
def test_a_batch_has_collapsed_when_demand_exceeds_it_and_it_is_tiny_or_half_of_what_is_normal(
    batch, demand, healthy, expected
):
    waiting = max(0.0, demand - batch)
    made = inputs(
        {"effective_batch_size_quantile": {"0.95": batch}},
        demand=demand,
        waiting=waiting,
        waiting_ratio=float(waiting > 0),
    )
    made = dataclasses.replace(made, baseline={} if healthy is None else {"batch": healthy})
    assert judge_all(made)["batch_collapse"].state is expected


def test_every_evidence_says_in_words_what_was_observed():
    for evidence in judge_all(with_gpu(0.2, **BLOCKED)).values():
        assert len(evidence.text) > 5
        assert (evidence.value is None) or (evidence.threshold is not None)


def test_device_oom_comes_from_a_log_and_makes_kv_pressure_failing():
    made = dataclasses.replace(
        inputs(**BLOCKED), external_evidence={"device_oom": OutsideEvidence(True, "torch.OutOfMemoryError")}
    )
    diagnosis = Diagnostician().diagnose(0.0, made)
    assert diagnosis.symptoms["device_oom"].state is True
    assert diagnosis.stage is Stage.FAILING


# Score, confidence, stage


def test_the_score_is_zero_when_calm_high_when_blocked_and_absent_when_nothing_is_known():
    assert scoring.score(inputs()) == 0.0
    assert scoring.score(inputs(**BLOCKED)) > 0.75
    nothing = dict.fromkeys(("demand", "waiting_ratio", "kv_usage_ratio", "blocked_ratio", "request_ratio"))
    for bursts in (0, 1):
        assert scoring.score(polls_with(nothing | {"burst_count": bursts})) is None


def test_a_queue_at_the_sequence_cap_scores_low():
    assert scoring.score(inputs({"latency_inflation_ratio": {"e2e": 10.0}}, **QUEUE, at_cap=True)) < 0.05


EVIDENCE = {
    "blocked_ratio": (0.0, 0.3),
    "request_ratio": (0.02, 1.0),
    "kv_usage_ratio": (0.55, 0.95),
    "waiting_ratio": (0.3, 1.0),
}
"""Between which values polls can show them beside each other: requests that do not fit wait."""


@settings(deadline=None)
@given(
    values=st.fixed_dictionaries({name: st.floats(*ends) for name, ends in EVIDENCE.items()}),
    grown=st.sampled_from([*EVIDENCE]),
    by=st.floats(0, 1),
)
def test_the_score_is_monotone_in_each_piece_of_evidence(values, grown, by):
    more = values | {grown: min(EVIDENCE[grown][1], values[grown] + by)}
    low, high = (
        inputs(demand=10.0, waiting=5.0, burst_count=2, **one | {"blocked_by_long_ratio": one["blocked_ratio"]})
        for one in (values, more)
    )
    assert 0 <= scoring.score(low) <= scoring.score(high) + 1e-9 <= 1 + 1e-9


@settings(deadline=None)
@given(blocked=st.floats(0, 1), inflation=st.floats(0, 10), gpu=st.floats(0, 1), waiting=st.floats(0.1, 1))
def test_the_score_is_monotone_in_inflation_unserved_demand_and_the_gpu_score(blocked, inflation, gpu, waiting):
    def score(extra: float) -> float:
        derived = {
            "latency_inflation_ratio": {"e2e": inflation + extra},
            "memory_high_compute_low_ratio": min(1, gpu + extra),
        }
        queue = {"demand": 10.0, "waiting": 10 * min(1, waiting + extra), "waiting_ratio": 1.0}
        return scoring.score(inputs(derived, **queue, blocked_ratio=blocked, blocked_by_long_ratio=blocked))

    assert score(0.0) <= score(0.3) <= 1


def test_without_gpu_data_the_same_verdict_is_less_sure():
    derived = {
        "engine_gpu_utilization_ratio": 0.2,
        "engine_gpu_memory_used_ratio": 0.93,
        "effective_batch_size_quantile": {"0.95": 2.0},
        "throughput_plateau": 1.0,
        "latency_inflation_ratio": {"e2e": 8.0},
    }
    with_gpus = Diagnostician().diagnose(0.0, inputs(derived, **BLOCKED))
    engine_only = {k: v for k, v in derived.items() if "gpu" not in k}
    without = Diagnostician().diagnose(0.0, inputs(engine_only, **BLOCKED))
    assert with_gpus.cause is without.cause is Cause.KV_CACHE_PRESSURE
    assert with_gpus.confidence == 1.0
    assert 0.5 < without.confidence < 1.0


def test_growth_that_will_fill_the_pool_is_building_and_blocked_without_cost_is_too():
    growth = {"kv_exhaustion_seconds": 120.0}
    growing = Diagnostician().diagnose(0.0, inputs(growth | {"kv_cache_usage_ratio": 0.7}))
    assert (growing.cause, growing.stage) == (Cause.HEALTHY, Stage.BUILDING)
    begun = Diagnostician().diagnose(0.0, inputs(growth | {"kv_cache_usage_ratio": 0.2}))
    assert begun.stage is Stage.NONE  # traffic has only begun, and a straight line through that predicts nothing
    assert Diagnostician().diagnose(0.0, inputs({"throughput_plateau": 0.0}, **BLOCKED)).stage is Stage.BUILDING
    collapsed = inputs({"effective_batch_size_quantile": {"0.95": 2.0}}, **BLOCKED)
    assert Diagnostician().diagnose(0.0, collapsed).stage is Stage.COLLAPSED


def test_how_kv_pressure_shows_is_unknown_where_no_page_can_show_it_and_counts_little_then():
    stranded = facts(polls_with(BUSY | {"still_seconds": 20.0, "kv_usage_ratio": 0.85, "blocked_ratio": None}))
    won = judge(stranded).rule
    assert won.id == "kv.stranded"
    assert stranded.symptom("admission_blocked") is None
    # Of what it expects, a plateau is there and the batch did not collapse; four are not known, `KV_SHOWS` among them.
    little = THRESHOLDS.confidence.unknown_weight_ratio
    assert scoring.confidence(won, stranded) == pytest.approx(1.0 / (2.0 + 4.0 * little))
