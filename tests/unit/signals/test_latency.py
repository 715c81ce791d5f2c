import pytest

from kvpressure.model.values import at
from kvpressure.signals import Context, latency
from tests.support.engines import CONTEXT, THRESHOLDS, histogram, window


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
    assert derived.keys() == {"latency_seconds", latency.OBSERVED}


def test_inflation_is_p95_over_the_healthy_one_and_absent_without_a_baseline():
    context = Context(THRESHOLDS, baseline={"e2e": 0.5})
    derived = latency.derive(window(60, histograms=served(2.0)), context)
    assert at(derived, "latency_inflation_ratio", "e2e") == pytest.approx(3.9)


def test_nothing_observed_means_no_latency():
    assert latency.derive(window(60), CONTEXT) == {}


def test_count_and_sum_stay_while_nothing_ends():
    derived = latency.derive(window(60, histograms=lambda t: {"ttft": histogram((1.0,), (4.0, 4.0), 2.0)}), CONTEXT)
    assert "latency_seconds" not in derived
    total = derived[latency.OBSERVED]["ttft"]
    assert (total.count, total.sum) == (4.0, 2.0)


def test_time_outside_the_engine_is_what_a_first_token_takes_beyond_queue_and_prefill():
    made = window(
        60,
        counters=lambda t: {"prefill_seconds": 0.25 * t, "prefilled": 1.0 * t},
        histograms=lambda t: {"ttft": histogram((4.0,), (t, t), 2.0 * t), "queue": histogram((4.0,), (t, t), 0.75 * t)},
    )
    assert latency.time_outside_engine(made.latest(20.0, 8), made, 20.0) == latency.TimeOutsideEngine(1.0, 0.5, False)
