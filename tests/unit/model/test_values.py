import math

from hypothesis import given
from hypothesis import strategies as st

from kvpressure.model.samples import HistogramSample
from kvpressure.model.values import quantile, ramp

INF = math.inf


def hist(*counts: float) -> HistogramSample:
    return HistogramSample((1.0, 2.0, INF), tuple(counts), 0.0)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values, q):
    bounds = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, INF)
    histogram = HistogramSample(bounds, tuple(float(sum(v <= b for v in values)) for b in bounds), sum(values))
    found = quantile(histogram, q)
    rank = q * len(values)
    true = sorted(values)[max(0, math.ceil(rank - 1e-9) - 1)]
    upper = next(b for b in bounds if b >= true)
    lower = max((b for b in bounds if b < true), default=0.0)
    assert lower - 1e-9 <= found <= upper + 1e-9


def test_quantiles_follow_prometheus_at_the_edges():
    assert quantile(hist(0, 0, 0), 0.5) is None
    assert quantile(hist(0, 0, 10), 0.5) == 2.0  # beyond the last finite bound: that bound
    assert quantile(hist(10, 10, 10), 0.5) == 0.5  # the first bucket starts at zero
    assert quantile(hist(0, 10, 10), 0.5) == 1.5


def test_a_ramp_is_level_before_and_behind() -> None:
    assert [ramp(value, 1.0, 3.0) for value in (-5.0, 1.0, 1.5, 3.0, 9.0)] == [0.0, 0.0, 0.25, 1.0, 1.0]


def test_a_ramp_without_a_slope_is_a_step() -> None:
    assert [ramp(value, 1.0, 1.0) for value in (0.99, 1.0, 1.01)] == [0.0, 1.0, 1.0]
