from __future__ import annotations

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


def test_without_a_queue_the_demand_for_the_cache_is_what_is_in_use():
    found = derived({"running": 4.0, "waiting": 0.0, "kv_usage": 0.5}, counters())
    assert found["saturation_ratio"] == pytest.approx(0.5)
    assert at(found, "demand_replicas", "kv_tokens") == pytest.approx(0.5)


def test_those_who_wait_count_with_their_prompt_and_half_of_an_answer():
    # Ten thousand tokens: four hold half of them, two more want 1,000 and half of 800 each.
    found = derived({"running": 4.0, "waiting": 2.0, "kv_usage": 0.6}, counters(), answers=800.0)
    assert at(found, "demand_replicas", "kv_tokens") == pytest.approx(0.6 + 2 * 0.14)


def test_a_long_queue_counts_no_more_than_it_takes_to_serve_those_who_come_and_drain_it_in_time():
    # 300 wait for 14 % each, and as many as come are served: a drain of 600 s is to be done in 600 s.
    found = derived({"running": 4.0, "waiting": 300.0, "kv_usage": 0.9}, counters(), answers=800.0)
    assert at(found, "demand_replicas", "kv_tokens") == pytest.approx(TARGET * (1 + 600 / 600))


def test_a_queue_that_the_share_that_is_left_free_drains_in_time_takes_no_more_than_what_comes():
    found = derived({"running": 4.0, "waiting": 50.0, "kv_usage": 0.9}, counters(), answers=800.0)
    assert at(found, "demand_replicas", "kv_tokens") == pytest.approx(1.0)


def test_a_queue_out_of_which_nobody_is_admitted_counts_in_full():
    gone = counters()(60)
    found = derived({"running": 4.0, "waiting": 5.0, "kv_usage": 0.9}, lambda _: gone, answers=800.0)
    assert at(found, "demand_replicas", "kv_tokens") == pytest.approx(0.9 + 5 * 0.14)


def test_a_batch_that_has_just_begun_counts_with_half_of_the_answers_that_are_to_come():
    found = derived({"running": 5.0, "waiting": 0.0, "kv_usage": 0.5}, counters(), answers=2000.0)
    assert at(found, "demand_replicas", "kv_tokens") == pytest.approx(5 * 0.2)
    assert found["saturation_ratio"] == pytest.approx(0.5)


def test_what_a_cache_holds_of_prompts_already_costs_nobody_anything():
    cached = counters()
    found = derived(
        {"running": 4.0, "waiting": 2.0, "kv_usage": 0.3},
        lambda t: {**cached(t), "computed_prompt_tokens": 0.1 * cached(t)["prompt_tokens"]},
    )
    assert at(found, "demand_replicas", "kv_tokens") == pytest.approx(0.3 + 2 * 0.01)


def test_where_layers_differ_a_request_counts_with_what_those_who_run_hold():
    cache = replace(CACHE, layers_differ=True)
    found = derived({"running": 4.0, "waiting": 2.0, "kv_usage": 0.4}, counters(), cache=cache)
    assert at(found, "demand_replicas", "kv_tokens") == pytest.approx(0.6)


def test_what_a_watermark_keeps_free_is_not_to_be_had():
    found = derived(
        {"running": 4.0, "waiting": 0.0, "kv_usage": 0.72}, counters(), cache=replace(CACHE, watermark_ratio=0.1)
    )
    assert at(found, "demand_replicas", "kv_tokens") == pytest.approx(0.8, rel=0.01)


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
