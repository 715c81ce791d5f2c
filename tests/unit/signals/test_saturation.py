from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from kvpressure.model.samples import CacheConfig
from kvpressure.model.values import at
from kvpressure.signals import compute
from tests.support.engines import CACHE, CONTEXT, histogram, window

TARGET = CONTEXT.thresholds.scaling.target_ratio
KNOWN = ("saturation_ratio", "demand_replicas")


def counters(
    started: float = 0.5, prompt: float = 1000.0, prefill_seconds: float = 0.4
) -> Callable[[int], Mapping[str, float]]:
    """As many requests start and end a second, each of `prompt` tokens that take `prefill_seconds`."""
    return lambda t: {
        "finished": started * t,
        "started": started * t,
        "prompt_tokens": started * prompt * t,
        "finished_prompts": started * t,
        "finished_prompt_tokens": started * prompt * t,
        "prefilled": started * t,
        "prefill_seconds": started * prefill_seconds * t,
    }


def derived(
    gauges: Mapping[str, float] | Callable[[int], Mapping[str, float]],
    counted: Callable[[int], Mapping[str, float]] = lambda _: {},
    *,
    answers: float | None = None,
    cache: CacheConfig = CACHE,
    **context: float,
) -> dict[str, Any]:
    """What the two families say; `answers` is the mean answer in tokens."""

    def histograms(t: int) -> dict[str, Any]:
        return {} if answers is None else {"request_output_tokens": histogram((10_000.0,), (t, t), answers * t)}

    read = gauges if callable(gauges) else lambda _: gauges
    found = compute(window(61, read, counted, histograms, cache), replace(CONTEXT, **context)).derived
    return {name: found[name] for name in KNOWN if name in found}


def nobody_admitted(_: int) -> Mapping[str, float]:
    return counters()(60)


def mostly_cached(t: int) -> Mapping[str, float]:
    return {**counters()(t), "computed_prompt_tokens": 0.1 * counters()(t)["prompt_tokens"]}


@pytest.mark.parametrize(
    ("running", "waiting", "usage", "given", "demand"),
    [
        pytest.param(4.0, 0.0, 0.5, {}, 0.5, id="without a queue it is what is in use"),
        # Ten thousand tokens: four hold half of them, two more want 1,000 and half of 800 each.
        pytest.param(4.0, 2.0, 0.6, {"answers": 800.0}, 0.6 + 2 * 0.14, id="a prompt and half of an answer each"),
        # 300 wait for 14 % each, and as many as come are served: a drain of 600 s is to be done in 600 s.
        pytest.param(
            4.0, 300.0, 0.9, {"answers": 800.0}, TARGET * (1 + 600 / 600), id="a long queue is drained in time"
        ),
        pytest.param(4.0, 50.0, 0.9, {"answers": 800.0}, 1.0, id="what is left free drains it in time"),
        pytest.param(
            4.0, 5.0, 0.9, {"answers": 800.0, "counted": nobody_admitted}, 0.9 + 5 * 0.14, id="nobody is admitted"
        ),
        pytest.param(5.0, 0.0, 0.5, {"answers": 2000.0}, 5 * 0.2, id="half of the answers are to come"),
        pytest.param(4.0, 2.0, 0.3, {"counted": mostly_cached}, 0.3 + 2 * 0.01, id="what a cache has costs nobody"),
        pytest.param(4.0, 2.0, 0.4, {"cache": replace(CACHE, layers_differ=True)}, 0.6, id="layers differ"),
        pytest.param(4.0, 0.0, 0.72, {"cache": replace(CACHE, watermark_ratio=0.1)}, 0.72 / 0.9008, id="a watermark"),
    ],
)
def test_demand_for_the_cache_is_what_those_who_run_and_wait_take_of_it(running, waiting, usage, given, demand):
    found = derived({"running": running, "waiting": waiting, "kv_usage": usage}, **({"counted": counters()} | given))
    assert at(found, "demand_replicas", "kv_tokens") == pytest.approx(demand)
    if not waiting and "cache" not in given:
        assert found["saturation_ratio"] == pytest.approx(usage)


def test_a_queue_of_unknown_cost_needs_no_known_share():
    found = derived({"running": 0.0, "waiting": 2.0, "kv_usage": 0.0}, cache=CacheConfig())
    assert "demand_replicas" not in found


def test_the_cap_on_sequences_binds_where_it_is_known():
    gauges = {"running": 8.0, "waiting": 4.0, "kv_usage": 0.1}
    found = derived(gauges, max_num_seqs=8.0)
    assert found["saturation_ratio"] == 1
    assert at(found, "demand_replicas", "sequences") == pytest.approx(1.5)
    assert at(derived(gauges), "demand_replicas", "sequences") is None
    assert derived(gauges)["saturation_ratio"] == pytest.approx(0.1)


def queued(ratio: float) -> float:
    """How many are there on average where they come at random and the server is busy for that share of the time."""
    return ratio + ratio**2 / (2 * (1 - ratio))


@pytest.mark.parametrize("ratio", [0.1, 0.4, 0.6, 0.9])
def test_prompts_that_are_computed_one_after_the_other_use_the_time_they_take(ratio):
    # Half a prompt a second, longer than any step. What each takes holds its wait for those before it.
    found = derived({"running": 1.0, "waiting": 0.0}, counters(0.5, 8000, queued(ratio) / 0.5))
    assert found["saturation_ratio"] == pytest.approx(ratio)
    assert at(found, "demand_replicas", "prefill") == pytest.approx(ratio)


def test_prompts_that_wait_for_their_turn_leave_no_time():
    found = derived({"running": 1.0, "waiting": 1.0}, counters(0.5, 8000, 2.0))
    assert found["saturation_ratio"] == 1


def test_prompts_too_short_to_fill_a_step_share_one():
    # Eight prompts a second, a tenth of a full step each, and each is computed in a tenth of a second.
    found = derived({"running": 1.0, "waiting": 0.0}, counters(8, 150, 0.1))
    assert queued(found["saturation_ratio"]) == pytest.approx(0.08)
    small = derived({"running": 1.0, "waiting": 0.0}, counters(8, 150, 0.1), max_num_batched_tokens=150.0)
    assert queued(small["saturation_ratio"]) == pytest.approx(0.8)


def test_prompts_that_come_faster_than_they_are_computed_ask_for_more_than_there_is():
    # Two start a second and one more waits each second: three come, and what is left free serves those who wait.
    found = derived(lambda t: {"running": 2.0, "waiting": float(t)}, counters(2, 8000, 0.5))
    assert found["saturation_ratio"] == 1
    assert at(found, "demand_replicas", "prefill") == pytest.approx(1.5)


def test_an_idle_engine_has_no_demand_and_that_of_an_empty_page_is_not_known():
    found = derived({"running": 0.0, "waiting": 0.0, "kv_usage": 0.0}, counters(0.0), max_num_seqs=8.0)
    assert found == {
        "saturation_ratio": 0.0,
        "demand_replicas": {"kv_tokens": 0.0, "sequences": 0.0, "prefill": 0.0},
    }
    assert derived({}) == {}
