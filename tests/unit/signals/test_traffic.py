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


@pytest.mark.parametrize(
    ("waiting", "per_second", "expected"),
    [
        pytest.param(lambda _: 0.0, lambda _: 2.0, pytest.approx(1.0, abs=0.15), id="steady"),
        pytest.param(lambda _: 0.0, lambda t: 60.0 if t == 30 else 0.0, pytest.approx(12, abs=1), id="a burst"),
        pytest.param(lambda t: 60.0 * (t >= 30), lambda _: 0.0, pytest.approx(12, abs=1), id="still in the engine"),
        pytest.param(lambda _: 0.0, lambda _: 0.0, None, id="none"),
    ],
)
def test_burstiness_is_the_highest_of_arrivals_over_their_mean(waiting, per_second, expected):
    made = window(61, lambda t: {"running": 0.0, "waiting": waiting(t)}, arrivals(per_second))
    assert traffic.burstiness(made) == expected
