from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.model.samples import HistogramSample
from kvpressure.signals.points import Tally, line, weighted_quantiles

INF = math.inf


@given(st.lists(st.integers(1, 64), min_size=1, max_size=100), st.floats(0.01, 1.0))
def test_weighted_quantiles_equal_those_of_the_repeated_values(values, q):
    pairs = [(float(v), 1.0 + v % 3) for v in values]
    repeated = sorted(v for v, w in pairs for _ in range(int(w)))
    found = weighted_quantiles(pairs, [q])
    assert found == [repeated[max(0, math.ceil(q * len(repeated) - 1e-9) - 1)]]


def test_quantiles_of_nothing_are_unknown():
    assert weighted_quantiles([], [0.5]) is None
    assert weighted_quantiles([(3.0, 0.0)], [0.5]) is None


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(-1e6, 1e6)), min_size=3, max_size=50, unique_by=lambda p: round(p[0], 2)
    )
)
def test_the_line_is_that_of_the_standard_library(points):
    fit = line(points)
    assert fit is not None
    expected = statistics.linear_regression([t for t, _ in points], [v for _, v in points])
    assert fit.slope == pytest.approx(expected.slope, rel=1e-5, abs=1e-5)
    assert -1e-9 <= fit.r2 <= 1 + 1e-9


def test_a_line_needs_three_points_at_different_times():
    assert line([(0, 1), (1, 2)]) is None
    assert line([(1, 1), (1, 2), (1, 3)]) is None


def test_a_tally_is_a_cumulative_histogram_of_weights():
    tally = Tally((1.0, 2.0))
    for value, weight in ((1.0, 5.0), (1.5, 2.0), (9.0, 1.0)):
        tally.observe(value, weight)
    assert tally.histogram() == HistogramSample((1.0, 2.0, INF), (5.0, 7.0, 8.0), 17.0)
