from __future__ import annotations

from kvpressure.features import throughput
from tests.support.engines import CONTEXT, window


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
