import pytest

from kvpressure.signals import compute, throughput
from tests.support.engines import CONTEXT, window


def test_tokens_per_second_by_kind():
    derived = throughput.derive(
        window(60, counters=lambda t: {"prompt_tokens": 50.0 * t, "generation_tokens": 7.0 * t}), CONTEXT
    )
    assert derived["tokens_per_second"] == {"prompt": 50, "generation": 7}


@pytest.mark.parametrize(
    ("seconds", "running", "waiting", "tokens", "plateau"),
    [
        pytest.param(60, lambda t: 5.0 + t / 6, 0.0, lambda t: 100.0 * t, 1.0, id="demand up, tokens flat"),
        pytest.param(60, lambda t: 5.0 + t / 6, 0.0, lambda t: 2.0 * t * t, 0.0, id="both up"),
        pytest.param(60, lambda _: 5.0, 0.0, lambda t: 100.0 * t, 0.0, id="steady demand without a queue"),
        pytest.param(20, lambda _: 5.0, 9.0, lambda t: 100.0 * t, None, id="less than both halves"),
    ],
)
def test_a_plateau_is_demand_that_grows_or_queues_without_more_tokens(seconds, running, waiting, tokens, plateau):
    gauges = lambda t: {"running": running(t), "waiting": waiting}  # noqa: E731
    made = window(seconds, gauges, lambda t: {"generation_tokens": tokens(t)})
    assert throughput.derive(made, CONTEXT).get("throughput_plateau") == plateau


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
