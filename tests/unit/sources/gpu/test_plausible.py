from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.sources.gpu.plausible import LARGEST_MEMORY_BYTES, Sieve

GIB = 2**30
INT64_MAX = 2**63 - 1


ODD = (4294967295, 101, -1, math.nan, math.inf, INT64_MAX)


@pytest.mark.parametrize(
    ("percent", "ratio", "rejected"),
    [
        *[(0, 0.0, {}), (37, 0.37, {}), (100, 1.0, {}), (None, None, {})],
        *((percent, None, {"utilization_out_of_range": 1}) for percent in ODD),
    ],
)
def test_a_percentage_is_a_ratio_or_absent_and_counted_where_it_cannot_be(percent, ratio, rejected) -> None:
    sieve = Sieve()
    assert sieve.share(percent) == ratio
    assert sieve.rejected == rejected


def test_bad_samples_are_taken_out_and_the_good_ones_stay_in_order() -> None:
    sieve = Sieve()
    assert sieve.shares([10, 4294967295, 30, math.nan]) == (0.1, 0.3)
    assert sieve.rejected == {"utilization_out_of_range": 2}


@pytest.mark.parametrize(
    ("used", "total", "kept", "reason"),
    [
        (90 * GIB, 80 * GIB, (None, 80 * GIB), "memory_used_above_total"),
        (INT64_MAX, 80 * GIB, (None, 80 * GIB), "memory_used_out_of_range"),
        (-1, 80 * GIB, (None, 80 * GIB), "memory_used_out_of_range"),
        (math.nan, 80 * GIB, (None, 80 * GIB), "memory_used_out_of_range"),
        (1 * GIB, 0, (None, None), "memory_total_out_of_range"),
        (1 * GIB, INT64_MAX, (None, None), "memory_total_out_of_range"),
        (1 * GIB, math.nan, (None, None), "memory_total_out_of_range"),
        (None, None, (None, None), None),
        (None, 80 * GIB, (None, 80 * GIB), None),
    ],
)
def test_memory_that_cannot_be_is_absent_and_counted_and_what_is_not_known_is_only_absent(
    used: float | None, total: float | None, kept: tuple[float | None, float | None], reason: str | None
) -> None:
    sieve = Sieve()
    assert sieve.memory(used, total) == kept
    assert sieve.rejected == ({reason: 1} if reason else {})


def test_a_sample_from_the_future_or_from_before_time_is_refused() -> None:
    sieve = Sieve()
    assert sieve.sample_time(1000.0, now=1000.0)
    assert not sieve.sample_time(2000.0, now=1000.0)
    assert not sieve.sample_time(0.0, now=1000.0)
    assert sieve.rejected == {"sample_time_out_of_range": 2}


@given(st.one_of(st.floats(), st.integers()), st.one_of(st.floats(), st.integers()))
def test_whatever_a_driver_says_only_possible_memory_comes_out(used: float, total: float) -> None:
    kept_used, kept_total = Sieve().memory(used, total)
    assert kept_total is None or 0 < kept_total < LARGEST_MEMORY_BYTES
    assert kept_used is None or (kept_total is not None and 0 <= kept_used <= kept_total)
