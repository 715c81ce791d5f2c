from __future__ import annotations

import pytest

from kvpressure.signals import compute, throughput
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


def test_the_work_of_gpus_is_reported_only_where_it_is_estimated():
    def counters(t):
        return {"estimated_flops": 2e12 * t, "estimated_read_bytes": 3e9 * t, "estimated_write_bytes": 1e9 * t}

    found = compute(window(60, counters=counters), CONTEXT).derived
    assert found["estimated_flops_total"] == pytest.approx(59 * 2e12)
    assert found["estimated_memory_bytes_total"] == pytest.approx(59 * 4e9)
    assert found["estimated_flops_per_second"] == pytest.approx(2e12)
    assert found["estimated_memory_bytes_per_second"] == pytest.approx(4e9)


@pytest.mark.parametrize("value", [{}, {"estimated_flops": 0.0, "estimated_read_bytes": 0.0}], ids=["absent", "off"])
def test_vllm_counts_0_where_the_estimate_is_off_and_that_is_not_known(value):
    found = compute(window(60, counters=lambda _: value), CONTEXT).derived
    assert not [name for name in found if name.startswith("estimated")]
