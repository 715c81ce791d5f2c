from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.signals import traffic
from kvpressure.signals.traffic import PROMPT_BOUNDS, powers_of_two
from tests.support.engines import histogram, window


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


def test_requests_still_in_the_engine_have_arrived_too():
    w = window(60, lambda t: {"running": 0.0, "waiting": 60.0 * (t >= 30)}, arrivals(lambda t: 0.0))
    assert traffic.burstiness(w) == pytest.approx(12, abs=1)


def test_no_arrivals_no_burstiness():
    w = window(60, lambda t: {"running": 0.0, "waiting": 0.0}, arrivals(lambda t: 0.0))
    assert traffic.burstiness(w) is None
