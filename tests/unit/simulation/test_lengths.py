import math
import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.model.samples import HistogramSample
from kvpressure.simulation.lengths import LengthDistribution, lengths

BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, math.inf)


def histogram(values: list[int]) -> HistogramSample:
    per = [sum(low < value <= high for value in values) for low, high in zip((0.0, *BOUNDS), BOUNDS, strict=False)]
    return HistogramSample(BOUNDS, tuple(float(n) for n in accumulate(per)), float(sum(values)))


def test_lengths_between_850_and_1000_are_not_read_as_500_to_1000():
    found = lengths(histogram(list(range(850, 1000))), 8192)
    assert found.at(0.05) == pytest.approx(857, abs=5)
    assert found.at(0.95) == pytest.approx(992, abs=5)


def test_the_95th_percentile_of_prompts_of_2550_to_3000_is_no_4850():
    found = lengths(histogram(list(range(2550, 3000))), 8192)
    assert found.at(0.95) < 3600
    assert found.buckets[0].high == 5000


def test_a_cap_between_two_bounds_may_hit_all_of_the_bucket_or_none_of_it():
    found = lengths(histogram([150] * 90 + [3000] * 10), 8192)
    assert found.above(3500) == (0.0, pytest.approx(0.1))
    assert found.above(2000) == (pytest.approx(0.1), pytest.approx(0.1))
    assert found.above(5000) == (0.0, 0.0)


def test_the_last_bucket_ends_at_the_longest_request():
    found = lengths(histogram([6000] * 5), 6500)
    assert found.longest == 6500
    assert found.mean == pytest.approx(6000, rel=0.01)


def test_nothing_is_known_of_no_requests():
    assert lengths(histogram([]), 8192) is None


@pytest.mark.parametrize("even", [False, True])
def test_a_bucket_without_a_width_has_no_lengths(even):
    counts = (2.0, 6.0, 6.0, 6.0)
    found = lengths(HistogramSample((0.0, 100.0, 100.0, math.inf), counts, 200.0), 8192, even=even)
    assert [(one.share, one.low, one.high) for one in found.buckets] == [(1.0, 0.0, 100.0)]
    assert lengths(HistogramSample((0.0, math.inf), (3.0, 3.0), 0.0), None, even=even) is None


@pytest.mark.parametrize(("shortest", "longest"), [(1000, 6000), (400, 1200), (200, 6000), (300, 1100)])
def test_a_last_bucket_is_filled_as_far_as_the_counts_before_it_say(shortest, longest):
    """Evenly between two lengths: what a cap at the last bound leaves is right within 2 %, and between both ends."""
    rng = random.Random(1)
    values = [round(rng.uniform(shortest, longest)) for _ in range(3000)]
    told = histogram(values)
    found, low, high = (lengths(told, 131_072, tail=tail) for tail in (0.0, -1.645, 1.645))
    assert low is not None
    assert high is not None
    cap = found.buckets[-1].low
    left = [value for value in values if value <= cap]

    def below(one: LengthDistribution) -> float:
        return sum(b.share * (b.first + b.last) / 2 for b in one.buckets[:-1]) / (1 - one.buckets[-1].share)

    assert below(found) == pytest.approx(sum(left) / len(left), rel=0.02)
    assert below(high) <= below(found) <= below(low)
    assert [one.mean for one in (found, low, high)] == pytest.approx([sum(values) / len(values)] * 3, rel=0.001)


@given(st.lists(st.integers(2, 5000), min_size=1, max_size=60), st.floats(0.0, 1.0))
def test_lengths_stay_in_their_buckets_and_keep_their_sum(values, spread):
    found = lengths(histogram(values), 8192, spread=spread)
    assert sum(one.share for one in found.buckets) == pytest.approx(1.0)
    assert all(one.low <= one.first <= one.last <= one.high for one in found.buckets)
    # The height in a bucket is kept off its bounds by a fiftieth.
    slack = 0.021 * sum(one.share * (one.high - one.low) for one in found.buckets)
    assert found.mean == pytest.approx(sum(values) / len(values), abs=slack + 1e-6)
    rng = random.Random(1)
    assert all(1 <= found.at(rng.random()) <= found.longest + 1 for _ in range(20))
