import pytest

from kvpressure.signals.baseline import Baseline
from tests.support.engines import THRESHOLDS


def learn(baseline: Baseline, seconds: float, *, healthy: bool, since: float = 0.0, times: int = 200) -> None:
    derived = {"latency_seconds": {"e2e": {"0.95": seconds}}, "effective_batch_size_quantile": {"0.95": 20.0}}
    for t in range(times):
        baseline.update(since + t, derived, 40.0, None, None, THRESHOLDS, healthy=healthy)


def test_the_baseline_learns_while_healthy_and_never_from_an_incident():
    baseline = Baseline()
    learn(baseline, 1.0, healthy=True)
    assert baseline.values(THRESHOLDS) == {"e2e": 1.0, "batch": 20.0, "step_tokens": 40.0}
    learn(baseline, 1.5, healthy=False, since=200)
    assert baseline.values(THRESHOLDS)["e2e"] == 1.0


def test_latency_that_is_inflated_already_is_not_learned_before_its_incident_is_reported():
    baseline = Baseline()
    learn(baseline, 1.0, healthy=True)
    learn(baseline, 30.0, healthy=True, since=200)
    assert baseline.values(THRESHOLDS)["e2e"] == 1.0


def test_the_baseline_follows_a_slow_drift_with_its_half_life():
    baseline = Baseline()
    learn(baseline, 1.0, healthy=True, times=5000)
    learn(baseline, 1.5, healthy=True, since=5000, times=1800)
    assert baseline.values(THRESHOLDS)["e2e"] == pytest.approx(1.25, abs=0.05)


def test_a_baseline_of_less_than_a_minute_is_not_given():
    baseline = Baseline()
    learn(baseline, 1.0, healthy=True, times=59)
    assert baseline.values(THRESHOLDS) == {}
