"""The fit test over polls made by hand: which prompt is the one that waits, and when nothing starts at all."""

from dataclasses import replace

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.samples import CacheConfig
from kvpressure.signals import compute
from kvpressure.signals.context import Context
from kvpressure.signals.fit import Fit, fit_of
from kvpressure.signals.points import Polls
from kvpressure.signals.room import estimated_capacity_tokens
from tests.support.engines import CACHE, CONTEXT, THRESHOLDS, histogram, window

POLLS = 21


def fit(gauges, counters=lambda t: {}, histograms=lambda t: {}, thresholds=THRESHOLDS) -> Fit:
    made = window(60, gauges, counters, histograms)
    return fit_of(made.latest(20.0, 8), made, Context(thresholds))


def mixed(t: int) -> dict[str, float]:
    """Prompts of 600 tokens on average, one request a second."""
    return {"finished_prompts": float(t), "finished_prompt_tokens": 600.0 * t, "started": float(t)}


def mostly_short(t: int):
    """Nine prompts of up to 200 tokens, then one of up to 5,000."""
    return {"request_prompt_tokens": histogram((200.0, 2000.0, 5000.0), (9.0 * t, 9.0 * t, 10.0 * t, 10.0 * t))}


def churning(t: int) -> dict[str, float]:
    """A batch of two, every other poll one, in a pool that has room for 1,000 tokens while it is at its largest."""
    full = t % 2 == 0
    return {"running": 2.0 if full else 1.0, "waiting": 8.0, "kv_usage": 0.9 if full else 0.5}


def test_the_polls_with_the_largest_batch_decide_while_requests_wait_all_the_time():
    found = fit(churning, mixed, mostly_short)
    assert found.blocked_ratio == 1.0
    assert found.blocked_by_long_ratio == pytest.approx(10 / POLLS)


def test_they_do_not_while_the_queue_empties_now_and_then():
    found = fit(lambda t: churning(t) | {"waiting": 8.0 if t % 5 else 0.0}, mixed, mostly_short)
    assert found.blocked_ratio < 0.6


def test_at_a_fixed_cap_the_mean_prompt_is_the_one_that_waits():
    steady = fit(lambda t: {"running": 8.0, "waiting": 8.0, "kv_usage": 0.8}, mixed, mostly_short)
    assert steady.steadiness == 1.0
    assert steady.blocked_ratio == 0.0
    assert steady.blocked_by_long_ratio == 1.0


@pytest.mark.parametrize(("deferred", "capped"), [(3.0, True), (4.0, False)])
def test_a_place_that_stays_free_is_chance_unless_the_deferred_requests_may_be_what_keeps_it_free(deferred, capped):
    assert THRESHOLDS.batch.refill_spare_count >= 1.0
    gauges = {"waiting": 8.0, "waiting_deferred": deferred, "kv_usage": 0.2}
    counters = lambda t: {"steps": 100.0 * t, "started": t / 5.0 + (t > 49)}  # noqa: E731
    found = fit(lambda t: gauges | {"running": 9.0 if t == 50 else 10.0}, counters)
    assert found.steadiness == 1.0
    assert found.at_cap is capped


@pytest.mark.parametrize(("started_every", "capped"), [(4.0, True), (12.0, False)])
def test_a_batch_in_which_few_requests_have_come_shows_no_cap(started_every: float, capped: bool):
    """The same ones are in it: it stays as large as it is whatever holds the others back."""
    found = fit(
        lambda t: {"running": 10.0, "waiting": 8.0, "kv_usage": 0.2},
        lambda t: {"steps": 100.0 * t, "started": t / started_every},
    )
    assert (found.refilled, found.at_cap) == (capped, capped)


def beyond(t: int):
    """Nine prompts of up to 200 tokens, then one of more than the last bound, 2,000."""
    return {"request_prompt_tokens": histogram((200.0, 2000.0), (9.0 * t, 9.0 * t, 10.0 * t))}


@pytest.mark.parametrize(("factor", "blocked"), [(1.0, 0.0), (1.5, 1.0)])
def test_how_long_prompts_beyond_the_last_bound_are_is_a_threshold(factor: float, blocked: float):
    """The prompt of a token is one of 1,410 tokens or of 2,331; 2,000 are free."""
    limits = load_thresholds(f"last_bucket_middle_factor: {factor}")
    found = fit(lambda t: {"running": 4.0, "waiting": 8.0, "kv_usage": 0.8}, mixed, beyond, limits)
    assert found.blocked_by_long_ratio == blocked


def starved(t: int) -> dict[str, float]:
    """The batch has been eight and is three; requests wait."""
    return {"running": 8.0 if t < 30 else 3.0, "waiting": 5.0, "kv_usage": 0.8}


def nothing_starts(t: int) -> dict[str, float]:
    return {
        "finished_prompts": 30.0,
        "finished_prompt_tokens": 1500.0,
        "started": 40.0,
        "generation_tokens": 50.0 * t,
    }


def answers(tokens: float):
    """One request a second with an answer of up to `tokens`."""
    return lambda t: {"request_output_tokens": histogram((tokens, 2 * tokens), (1.0 * t, 1.0 * t, 1.0 * t))}


def test_a_queue_from_which_nothing_starts_does_not_fit_if_a_request_with_its_answer_would_not():
    """2,000 tokens are free, prompts have 50."""
    found = fit(starved, nothing_starts, answers(4000.0))
    assert found.starved
    assert found.blocked_ratio == 1.0
    assert not fit(starved, nothing_starts, answers(1000.0)).starved


def test_where_no_answer_is_known_only_a_full_cache_keeps_everything_from_starting():
    assert fit(lambda t: starved(t) | {"kv_usage": 0.95}, nothing_starts).starved
    assert not fit(starved, nothing_starts).starved


def steps(started_every: float):
    """Twenty steps a second."""
    return lambda t: {"steps": 20.0 * t, "started": t / started_every, "prompt_tokens": 100.0 * t}


@pytest.mark.parametrize(
    ("free_every", "started_every", "at_cap"),
    [(4, 0.1, True), (4, 5.0, False), (1000, 5.0, True)],
    ids=["one free place for ten starts a second", "for one in five seconds", "none is ever free"],
)
def test_a_cap_is_where_free_places_are_taken_at_once(free_every: int, started_every: float, at_cap: bool):
    def batch(t: int) -> dict[str, float]:
        return {"running": 30.0 if t % free_every else 29.0, "waiting": 5.0, "kv_usage": 0.3}

    found = fit(batch, steps(started_every))
    assert found.steadiness == 1.0
    assert found.at_cap is at_cap


@pytest.mark.parametrize(("seconds_each", "at_cap"), [(0.05, False), (1.5, True)])
def test_a_place_shows_as_free_while_the_prompt_that_takes_it_is_computed(seconds_each: float, at_cap: bool):
    """One free place in four polls for one start in five seconds: that of a prompt that takes long to compute."""

    def counters(t: int) -> dict[str, float]:
        return steps(5.0)(t) | {"prefill_seconds": seconds_each * t / 5.0, "prefilled": t / 5.0}

    found = fit(lambda t: {"running": 30.0 if t % 4 else 29.0, "waiting": 5.0, "kv_usage": 0.3}, counters)
    assert found.at_cap is at_cap


def test_where_layers_differ_a_request_may_take_more_than_its_tokens():
    polls = window(60, lambda t: {"running": 8.0, "waiting": 8.0, "kv_usage": 0.8}, steps(1.0))
    assert not fit_of(polls.latest(19.0, 20), polls, Context(THRESHOLDS)).fit_unknown
    polls.cache = replace(polls.cache, layers_differ=True, max_model_len=8000)
    assert fit_of(polls.latest(19.0, 20), polls, Context(THRESHOLDS)).fit_unknown


@pytest.mark.parametrize(
    ("gauges", "counters"),
    [
        (starved, lambda t: nothing_starts(t) | {"started": 40.0 + t}),
        (lambda t: starved(t) | {"kv_usage": 0.2}, nothing_starts),
        (lambda t: starved(t) | {"running": 8.0}, nothing_starts),
        (starved, lambda t: nothing_starts(t) | {"generation_tokens": 50.0}),
        (lambda t: starved(t) | {"waiting": 5.0 if t % 3 else 0.0}, nothing_starts),
    ],
    ids=["requests start", "the pool is nearly empty", "at the cap", "the engine hangs", "the queue drains"],
)
def test_a_queue_from_which_nothing_starts_for_another_reason_may_fit(gauges, counters):
    found = fit(gauges, counters)
    assert not found.starved
    assert found.blocked_ratio < THRESHOLDS.symptoms.admission_blocked_min_ratio


def with_watermark(ratio: float | None, usage: float = 0.6, running: float = 4.0):
    """8 wait beside those that run; 4,000 of 10,000 tokens are free, prompts are of 600."""
    cache = replace(CACHE, watermark_ratio=ratio)
    made = window(60, lambda _: {"running": running, "waiting": 8.0, "kv_usage": usage}, mixed, cache=cache)
    found = fit_of(made.latest(20.0, 8), made, Context(THRESHOLDS))
    return made, found.blocked_ratio, found.by_watermark_ratio


@pytest.mark.parametrize(
    ("ratio", "usage", "running", "blocked", "by_watermark"),
    [
        (None, 0.6, 4.0, 0.0, None),
        (0.0, 0.6, 4.0, 0.0, None),
        (0.3, 0.6, 4.0, 0.0, None),
        (0.35, 0.6, 4.0, 1.0, 1.0),
        (0.35, 0.6, 0.0, 0.0, None),
        (0.35, 0.97, 4.0, 1.0, 0.0),
    ],
    ids=["not declared", "none", "room beside it", "kept free", "nothing runs", "full anyway"],
)
def test_what_a_watermark_keeps_free_is_not_for_those_that_wait(ratio, usage, running, blocked, by_watermark):
    _, blocked_ratio, by_watermark_ratio = with_watermark(ratio, usage, running)
    assert (blocked_ratio, by_watermark_ratio) == (blocked, by_watermark)


def test_free_tokens_are_reported_as_they_are_judged():
    made, _, _ = with_watermark(0.35)
    derived = compute(made, CONTEXT).derived
    # v1/core/kv_cache_manager.py: int(watermark * blocks), of all blocks with the one that is never handed out.
    assert derived["kv_free_tokens"] == 4000 - 16 * int(0.35 * 626)
    assert compute(with_watermark(0.5)[0], CONTEXT).derived["kv_free_tokens"] == 0.0


def unsized(usage: float, running: float = 4.0, **changes: float) -> Fit:
    """Of a pool whose size nobody tells: prompts of 600 tokens and answers of 400, so that each holds 800."""
    gauges = {"waiting": 3.0, "running": running, "kv_usage": usage, **changes}
    outputs = {"request_output_tokens": histogram((400.0,), (5.0, 5.0), 2000.0)}
    made = window(60, lambda _: gauges, mixed, lambda _: outputs, cache=CacheConfig())
    return fit_of(made.latest(20.0, 8), made, Context(THRESHOLDS))


@pytest.mark.parametrize(
    ("usage", "running", "blocked"),
    [
        (0.95, 4.0, 1.0),  # a pool of 3368 tokens, of which 168 are free
        (0.8, 4.0, 0.0),  # of 4000 tokens, of which 800 are free
        (0.86, 4.0, 1.0),  # of 3720 tokens, of which 520 are free
        (0.86, 12.0, 0.0),  # three times as large
        (0.3, 64.0, 0.0),
    ],
)
def test_a_pool_that_nobody_sizes_is_as_large_as_what_those_who_run_hold_says(usage, running, blocked):
    assert unsized(usage, running).blocked_ratio == blocked


@pytest.mark.parametrize(("usage", "blocked"), [(0.9, 0.0), (0.999, 1.0)])
def test_a_prefix_that_all_share_takes_room_once(usage, blocked):
    """Ten requests of 60 tokens of their own behind 540 that all share: 1140 tokens of the pool."""
    made = window(
        60,
        lambda _: {"waiting": 3.0, "running": 10.0, "kv_usage": usage},
        lambda t: {**mixed(t), "prompt_tokens": 600.0 * t, "computed_prompt_tokens": 60.0 * t},
        cache=CacheConfig(),
    )
    assert estimated_capacity_tokens(made.latest(20.0, 8), made) == int(1140 / usage)
    put_off = Polls([replace(point, gauges={**point.gauges, "waiting_deferred": 2.0}) for point in made.points])
    assert estimated_capacity_tokens(put_off, made) is None
    assert fit_of(made.latest(20.0, 8), made, Context(THRESHOLDS)).blocked_ratio == blocked


def test_what_hardly_anybody_holds_and_what_nobody_holds_sizes_nothing():
    assert unsized(0.05, 1.0).blocked_ratio is None
    assert unsized(0.97, 0.0).blocked_ratio is None


def test_where_prompts_are_not_known_either_nothing_does():
    made = window(60, lambda _: {"waiting": 3.0, "running": 4.0, "kv_usage": 0.95}, cache=CacheConfig())
    assert fit_of(made.latest(20.0, 8), made, Context(THRESHOLDS)).blocked_ratio is None
