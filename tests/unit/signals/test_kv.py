import dataclasses

import pytest

from kvpressure.model.samples import CacheConfig, EngineSample
from kvpressure.signals import Context, compute
from tests.support.engines import CACHE, CONTEXT, THRESHOLDS, histogram, window


def derive(*args, context=CONTEXT, **kwargs):
    return compute(window(*args, **kwargs), context).derived


def prompts(tokens: float):
    """Counters of an engine that finishes one request of this prompt length a second."""
    return lambda t: {"finished_prompts": float(t), "finished_prompt_tokens": tokens * t}


def long_ones_start(t: int) -> dict[str, float]:
    """50 s of 50-token prompts, then 3000-token prompts start and none of them finishes."""
    finished, tokens = min(t, 50), 50.0 * min(t, 50)
    return {"finished_prompts": float(finished), "finished_prompt_tokens": tokens, "started": float(t)} | {
        "prompt_tokens": tokens + 3000.0 * max(0, t - 50)
    }


def nothing_can_start(t: int) -> dict[str, float]:
    """Ten short prompts finish early, six long ones start by second 106, and then the pool is full."""
    finished, tokens = 10.0 + min(t, 100), 50.0 * min(t, 100)
    return {"finished_prompts": finished, "finished_prompt_tokens": 500.0 + tokens, "started": float(min(t, 106))} | {
        "prompt_tokens": tokens + 3000.0 * max(0, min(t, 106) - 100)
    }


@pytest.mark.parametrize(
    ("gauges", "counters", "seconds", "blocked"),
    [
        pytest.param({"waiting": 10.0, "kv_usage": 0.79}, prompts(3000), 60, 1.0, id="a typical prompt does not fit"),
        pytest.param({"waiting": 30.0, "kv_usage": 0.27}, prompts(30), 60, 0.0, id="a queue at the sequence cap"),
        pytest.param({"waiting": 0.0, "kv_usage": 0.99}, prompts(500), 60, 0.0, id="a full pool without a queue"),
        # Of the polls that a verdict counts: those of the last 20 s.
        pytest.param(
            lambda t: {"waiting": float(t % 4 == 0), "kv_usage": 0.95}, prompts(3000), 60, 5 / 21, id="a share of polls"
        ),
        # Structured output stays counted as deferred until it is admitted, long after its grammar is ready.
        pytest.param(
            {"waiting": 5.0, "waiting_deferred": 5.0, "kv_usage": 0.99}, prompts(3000), 60, 1.0, id="those put off too"
        ),
        pytest.param({"waiting": 5.0, "kv_usage": 0.99}, lambda _: {}, 60, None, id="no prompt length"),
        pytest.param(
            lambda t: {"waiting": float(t > 50), "kv_usage": 0.8}, long_ones_start, 60, 9 / 21, id="long ones started"
        ),
        *(
            pytest.param({"waiting": 5.0, "kv_usage": 0.8}, nothing_can_start, seconds, 1.0, id=f"full for {seconds} s")
            for seconds in (110, 160, 400)
        ),
        pytest.param(
            {"waiting": 3.0, "kv_usage": 0.8}, lambda _: prompts(3000)(10), 30, 1.0, id="by the server's whole life"
        ),
    ],
)
def test_admission_is_blocked_in_the_polls_in_which_what_waits_does_not_fit(gauges, counters, seconds, blocked):
    derived = derive(seconds, gauges if callable(gauges) else lambda _: gauges, counters)
    assert derived.get("admission_blocked_ratio") == (None if blocked is None else pytest.approx(blocked))


def test_idle_streams_do_not():
    def counters(t):
        return prompts(3000)(t) | {"started": float(t)}

    def first_tokens(t):
        return {"ttft": histogram((0.1, 1.0), (float(t), float(t), float(t)), 0.05 * t)}

    gauges = {"waiting": 5.0, "waiting_deferred": 5.0, "kv_usage": 0.99}
    assert derive(60, lambda t: gauges, counters, first_tokens)["admission_blocked_ratio"] == 0.0


def test_without_a_capacity_nothing_in_tokens_is_said():
    derived = derive(60, lambda t: {"waiting": 5.0, "kv_usage": 0.99, "running": 1.0}, prompts(100), cache=None)
    assert not {"kv_capacity_tokens", "kv_free_tokens", "kv_tokens_per_request"} & derived.keys()
    assert {"kv_cache_usage_ratio", "kv_cache_usage_max_ratio"} <= derived.keys()


def test_memory_per_request_needs_bytes_per_token_from_the_page_or_the_operator():
    def gauges(t):
        return {"kv_usage": 0.5, "running": 10.0}

    assert "kv_bytes_per_request" not in derive(30, gauges)
    assert derive(30, gauges)["kv_tokens_per_request"] == 500
    page = dataclasses.replace(CACHE, bytes_per_token=1024.0)
    assert derive(30, gauges, cache=page)["kv_bytes_per_request"] == 500 * 1024
    operator = Context(THRESHOLDS, bytes_per_token=2048.0)
    assert derive(30, gauges, cache=page, context=operator)["kv_bytes_per_request"] == 500 * 2048


def test_exhaustion_is_predicted_from_steady_growth():
    derived = derive(60, lambda t: {"kv_usage": 0.2 + 0.005 * t, "waiting": 0.0}, prompts(1000))
    # At t=59 the usage is 0.495; 50 tokens/s; 10000 * (1 - 0.495) - 1000 tokens of room.
    assert derived["kv_growth_tokens_per_second"] == pytest.approx(50)
    assert derived["kv_exhaustion_seconds"] == pytest.approx(4050 / 50)


@pytest.mark.parametrize(
    "usage",
    [
        lambda t: 0.5,
        lambda t: 0.8 - 0.005 * t,
        lambda t: 0.3 + 0.04 * (t % 10),
        lambda t: min(0.6, 0.02 * t),
        lambda t: 0.1 + 0.00001 * t,
    ],
    ids=["flat", "falling", "a sawtooth", "risen and levelled off", "far away"],
)
def test_exhaustion_is_not_predicted_when_use_does_not_grow_steadily_towards_it(usage):
    derived = derive(60, lambda t: {"kv_usage": usage(t), "waiting": 0.0}, prompts(100))
    assert "kv_exhaustion_seconds" not in derived


@pytest.mark.parametrize(
    ("preempted", "started", "running", "rate", "share"),
    [(0.5, 0.5, 10.0, 0.5, 10 / 20), (9.0, 0.0, 2.0, 9.0, 1.0), (0.0, 1.0, 0.0, 0.0, 0.0)],
    ids=["of the requests served", "never above one", "none"],
)
def test_preemptions_are_a_rate_and_a_share(preempted, started, running, rate, share):
    counters = lambda t: {"preemptions": preempted * t, "started": started * t}  # noqa: E731
    derived = derive(61, lambda _: {"running": running}, counters)
    assert derived["preemptions_per_second"] == pytest.approx(rate)
    assert derived["preempted_request_ratio"] == pytest.approx(share)
    assert "preempted_request_ratio" not in derive(30)


def test_a_capacity_that_the_page_only_sometimes_carries_is_remembered():
    made = window(10, lambda t: {"kv_usage": 0.5}, cache=CacheConfig(capacity_tokens=1000))
    made.add(10.0, EngineSample("m", "0", {"kv_usage": 0.5}, {}))
    assert made.cache.capacity_tokens == 1000


def test_what_preemption_throws_out_is_what_running_requests_hold_on_average():
    def running(_):
        return {"running": 4.0, "kv_usage": 0.8}

    derived = derive(60, running, lambda t: {"preemptions": t // 2})
    assert derived["kv_preempted_tokens_per_second"] == pytest.approx(2000 * derived["preemptions_per_second"])
    assert derive(60, running, lambda _: {"preemptions": 7.0})["kv_preempted_tokens_per_second"] == 0.0


@pytest.mark.parametrize(
    ("gauges", "counters", "cache"),
    [
        ({"running": 4.0, "kv_usage": 0.8}, {}, CACHE),
        ({"running": 4.0, "kv_usage": 0.8}, {"preemptions": 1.0}, CacheConfig()),
        ({"running": 4.0}, {"preemptions": 1.0}, CACHE),
    ],
    ids=["no preemptions", "no capacity", "no use"],
)
def test_what_it_throws_out_is_not_known_without_what_it_is_made_of(gauges, counters, cache):
    derived = derive(60, lambda _: gauges, lambda t: {name: t * value for name, value in counters.items()}, cache=cache)
    assert "kv_preempted_tokens_per_second" not in derived


def test_tokens_of_preempted_requests_are_those_that_the_page_counts():
    counted = derive(60, counters=lambda t: {"preempted_prompt_tokens": 30.0 * t, "preempted_output_tokens": 2.0 * t})
    assert counted["kv_preempted_tokens_per_second"] == pytest.approx(32.0)


def test_a_pool_of_which_the_later_half_is_not_known_is_not_predicted_to_be_full():
    grows = derive(60, lambda t: {"kv_usage": 0.5 + 0.008 * t}, prompts(30))
    assert grows["kv_exhaustion_seconds"] == pytest.approx(3.125)
    seldom = derive(60, lambda t: {"kv_usage": 0.5 + 0.008 * t} if t < 28 or t == 59 else {}, prompts(30))
    assert "kv_exhaustion_seconds" not in seldom
