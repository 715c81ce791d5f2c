from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.features import Context, derive_gpu, gpu, latency, throughput, traffic
from kvpressure.features.baseline import Baseline
from kvpressure.features.traffic import PROMPT_BOUNDS, powers_of_two
from kvpressure.features.windows import GpuWindow
from kvpressure.model.samples import GpuSample
from kvpressure.model.values import at
from tests.support.engines import CONTEXT, THRESHOLDS, histogram, window

GIB = 2.0**30


# latency


def served(seconds_each: float, per_second: float = 10.0):
    """Histograms of an engine whose requests all take about `seconds_each`."""

    def histograms(t):
        n = per_second * t
        bounds = (seconds_each / 2, seconds_each, 2 * seconds_each)
        return {"e2e": histogram(bounds, (0.0, n, n, n), n * seconds_each)}

    return histograms


def test_latency_quantiles_are_of_the_window():
    derived = latency.derive(window(60, histograms=served(2.0)), CONTEXT)
    assert at(derived, "latency_seconds", "e2e", "0.95") == pytest.approx(1.95)
    assert derived.keys() == {"latency_seconds"}


def test_inflation_is_p95_over_the_healthy_one_and_absent_without_a_baseline():
    context = Context(THRESHOLDS, baseline={"e2e": 0.5})
    derived = latency.derive(window(60, histograms=served(2.0)), context)
    assert at(derived, "latency_inflation_ratio", "e2e") == pytest.approx(3.9)


def test_nothing_observed_means_no_latency():
    assert latency.derive(window(60), CONTEXT) == {}


def learn(baseline: Baseline, seconds: float, *, healthy: bool, since: float = 0.0, times: int = 200) -> None:
    derived = {"latency_seconds": {"e2e": {"0.95": seconds}}, "effective_batch_size_quantile": {"0.95": 20.0}}
    for t in range(times):
        baseline.update(since + t, derived, 40.0, None, healthy=healthy)


def test_the_baseline_learns_while_healthy_and_never_from_an_incident():
    baseline = Baseline(THRESHOLDS)
    learn(baseline, 1.0, healthy=True)
    assert baseline.values() == {"e2e": 1.0, "batch": 20.0, "step_tokens": 40.0}
    learn(baseline, 1.5, healthy=False, since=200)
    assert baseline.values()["e2e"] == 1.0


def test_latency_that_is_inflated_already_is_not_learned_before_its_incident_is_told():
    baseline = Baseline(THRESHOLDS)
    learn(baseline, 1.0, healthy=True)
    learn(baseline, 30.0, healthy=True, since=200)
    assert baseline.values()["e2e"] == 1.0


def test_the_baseline_follows_a_slow_drift_with_its_half_life():
    baseline = Baseline(THRESHOLDS)
    learn(baseline, 1.0, healthy=True, times=5000)
    learn(baseline, 1.5, healthy=True, since=5000, times=1800)
    assert baseline.values()["e2e"] == pytest.approx(1.25, abs=0.05)


def test_a_baseline_of_less_than_a_minute_is_not_given():
    baseline = Baseline(THRESHOLDS)
    learn(baseline, 1.0, healthy=True, times=59)
    assert baseline.values() == {}


# throughput


def test_tokens_per_second_by_kind():
    derived = throughput.derive(
        window(60, counters=lambda t: {"prompt_tokens": 50.0 * t, "generation_tokens": 7.0 * t}), CONTEXT
    )
    assert derived["tokens_per_second"] == {"prompt": 50, "generation": 7}


def test_demand_up_and_tokens_flat_is_a_plateau():
    w = window(60, lambda t: {"running": 5.0 + t / 6, "waiting": 0.0}, lambda t: {"generation_tokens": 100.0 * t})
    assert throughput.derive(w, CONTEXT)["throughput_plateau"] == 1.0


def test_demand_up_and_tokens_up_is_no_plateau():
    w = window(60, lambda t: {"running": 5.0 + t / 6, "waiting": 0.0}, lambda t: {"generation_tokens": 2.0 * t * t})
    assert throughput.derive(w, CONTEXT)["throughput_plateau"] == 0.0


def test_steady_demand_without_queue_is_no_plateau():
    w = window(60, lambda t: {"running": 5.0, "waiting": 0.0}, lambda t: {"generation_tokens": 100.0 * t})
    assert throughput.derive(w, CONTEXT)["throughput_plateau"] == 0.0


def test_a_plateau_needs_both_halves_of_the_window():
    w = window(20, lambda t: {"running": 5.0, "waiting": 9.0}, lambda t: {"generation_tokens": 100.0 * t})
    assert "throughput_plateau" not in throughput.derive(w, CONTEXT)


# traffic


def test_prompts_beyond_the_last_bucket_end_at_the_next_of_the_series():
    # max_model_len 4096: vLLM's last bound is 2000, so the +Inf bucket holds prompts of 2000 to 5000 tokens.
    shape = histogram((1000.0, 2000.0), (0.0, 0.0, 100.0), 300_000.0)
    assert traffic.token_quantile(shape, 0.5) == pytest.approx(3500)
    assert traffic.token_quantile(shape, 0.5, longest=4096) == pytest.approx(3048)
    assert traffic.token_quantile(histogram((1000.0, 5000.0), (0.0, 0.0, 10.0)), 1.0) == 10_000


@given(st.lists(st.integers(0, 500), min_size=13, max_size=13))
def test_powers_of_two_are_a_histogram_of_the_same_observations(steps):
    bounds = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
    counts = tuple(float(sum(steps[: i + 1])) for i in range(13))
    made = powers_of_two(histogram(bounds, counts, 1.0), PROMPT_BOUNDS)
    assert made.bounds == (*PROMPT_BOUNDS, math.inf)
    assert list(made.counts) == sorted(made.counts)
    assert made.count == counts[-1]
    assert made.counts[PROMPT_BOUNDS.index(16384.0)] == counts[-1]  # above 10000, where the series would go on


def arrivals(per_second):
    total = [0.0]
    for t in range(200):
        total.append(total[-1] + per_second(t))
    return lambda t: {"finished": total[t]}


def test_steady_arrivals_have_a_burstiness_of_one():
    w = window(60, lambda t: {"running": 4.0, "waiting": 0.0}, arrivals(lambda t: 2.0))
    assert traffic.burstiness(w) == pytest.approx(1.0, abs=0.15)


def test_one_burst_a_minute_is_bursty():
    w = window(61, lambda t: {"running": 0.0, "waiting": 0.0}, arrivals(lambda t: 60.0 if t == 30 else 0.0))
    assert traffic.burstiness(w) == pytest.approx(12, abs=1)


def test_requests_still_held_have_arrived_too():
    w = window(60, lambda t: {"running": 0.0, "waiting": 60.0 * (t >= 30)}, arrivals(lambda t: 0.0))
    assert traffic.burstiness(w) == pytest.approx(12, abs=1)


def test_no_arrivals_no_burstiness():
    w = window(60, lambda t: {"running": 0.0, "waiting": 0.0}, arrivals(lambda t: 0.0))
    assert traffic.burstiness(w) is None


# GPUs


def gpus(memory=0.92, utilization: tuple[float, ...] = (0.2,), uuid="GPU-1") -> GpuWindow:
    made = GpuWindow(60)
    for t in range(60):
        made.add(GpuSample(float(t), uuid, "0", "nvidia", "H100", "580", memory * 80 * GIB, 80 * GIB, utilization))
    return made


def score(gauges, *windows: GpuWindow):
    derived = gpu.derive(window(60, lambda t: gauges), Context(THRESHOLDS, gpus=windows))
    return derived.get("memory_high_compute_low_score")


BUSY = {"running": 2.0, "waiting": 10.0}


def test_memory_high_and_compute_low_under_demand_scores_one():
    assert score(BUSY, gpus()) == 1.0


def test_an_idle_server_with_its_memory_preallocated_scores_zero():
    assert score({"running": 0.0, "waiting": 0.0}, gpus()) == 0.0


def test_a_busy_gpu_scores_zero():
    assert score(BUSY, gpus(utilization=(0.95,))) == 0.0


def test_the_ramps_are_linear():
    assert score(BUSY, gpus(memory=0.875, utilization=(0.45,))) == pytest.approx(0.25)


def test_the_score_is_absent_without_valid_gpu_data_or_known_demand():
    assert score(BUSY) is None
    assert score(BUSY, gpus(utilization=())) is None
    assert score({"running": 2.0}, gpus()) is None
    assert score(BUSY, gpus(), gpus(utilization=(), uuid="GPU-2")) is None


def test_an_engine_on_two_gpus_shows_the_fullest_and_the_mean_utilization():
    context = Context(THRESHOLDS, gpus=(gpus(0.5, (0.2,)), gpus(0.9, (0.6,), "GPU-2")))
    derived = gpu.derive(window(10), context)
    assert derived["engine_gpu_memory_used_ratio"] == pytest.approx(0.9)
    assert derived["engine_gpu_utilization_ratio"] == pytest.approx(0.4)
    assert derived["engine_gpu_info"] == {"GPU-1": 1.0, "GPU-2": 1.0}


def test_a_mig_instance_has_memory_but_no_utilization_and_says_so():
    derived = derive_gpu(gpus(utilization=()))
    assert derived["gpu_utilization_valid"] == 0.0
    assert "gpu_utilization_ratio" not in derived
    assert derived["gpu_memory_total_bytes"] == 80 * GIB


def test_an_integrated_gpu_that_does_not_tell_its_memory_has_no_memory_series():
    made = GpuWindow(60)
    made.add(GpuSample(0.0, "GPU-1", "0", "nvidia"))
    derived = derive_gpu(made)
    assert not {"gpu_memory_used_bytes", "gpu_memory_total_bytes"} & derived.keys()
