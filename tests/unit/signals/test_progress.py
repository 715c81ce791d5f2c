"""Whether an engine gets anywhere, over polls made by hand."""

import pytest

from kvpressure.signals.gateway import IN_ENGINE
from kvpressure.signals.progress import progress_of
from tests.support.engines import CACHE, window


def works(t: int) -> dict[str, float]:
    return {"steps": 30.0 * t, "prompt_tokens": 900.0 * t, "generation_tokens": 100.0 * t, "finished": 1.0 * t}


def stops(at: int):
    return lambda t: works(min(t, at))


def running(t: int) -> dict[str, float]:
    return {"running": 8.0, "waiting": 2.0, "kv_usage": 0.5}


def test_a_page_that_stands_still_with_requests_in_its_batch_is_frozen():
    assert progress_of(window(60, running, stops(20))).frozen_seconds == 39.0
    assert progress_of(window(60, running, works)).frozen_seconds == 0.0


@pytest.mark.parametrize("seconds", [60, 65], ids=["gateway answers last", "gateway fails last"])
def test_a_gateway_that_comes_and_goes_moves_nothing(seconds):
    def gauges(t: int) -> dict[str, float]:
        at_gateway = {"waiting": 2.0 + t, "waiting_deferred": t / 2, IN_ENGINE: 2.0} if t // 5 % 2 else {}
        return running(t) | {"waiting_deferred": 0.0} | at_gateway

    assert progress_of(window(seconds, gauges, stops(20))).frozen_seconds == seconds - 21.0
    moved = progress_of(window(seconds, lambda t: gauges(t) | {"running": 8.0 + (t >= 50)}, stops(20)))
    assert moved.frozen_seconds == seconds - 51.0


def test_a_long_prefill_moves_the_cache_and_is_not():
    found = progress_of(window(60, lambda t: running(t) | {"kv_usage": 0.5 + 0.001 * t}, stops(20)))
    assert (found.frozen_seconds, found.looping_seconds) == (0.0, 0.0)


def test_a_cache_that_only_fills_while_nothing_comes_out_is_of_a_long_prompt():
    filling = window(60, lambda t: running(t) | {"kv_usage": 0.5 + 0.001 * t}, stops(20))
    assert progress_of(filling).filling_seconds == 39.0
    begun = window(
        60, lambda t: running(t) | {"running": float(t >= 30), "kv_usage": 0.001 * max(0, t - 30)}, stops(20)
    )
    assert progress_of(begun).filling_seconds == 29.0


@pytest.mark.parametrize(("lately", "found"), [(0.0, 0.0), (4.0, 0.0), (20.0, 49.0)])
def test_a_long_prompt_that_was_done_lately_counts_where_that_is_wanted(lately, found):
    polls = window(
        60,
        lambda t: running(t) | {"kv_usage": 0.001 * t if t < 50 else 0.0},
        lambda t: works(20) | {"prompt_tokens": 900.0 * 20 + 90_000.0 * (t >= 50)},
    )
    assert progress_of(polls, lately).filling_seconds == found


@pytest.mark.parametrize(("answers", "share"), [(0.0, 1.0), (1.0, 0.99), (60.0, 0.4)])
def test_what_comes_into_the_cache_is_of_prompts_but_for_the_answers_beside_them(answers, share):
    def filling(t: int) -> dict[str, float]:
        return running(t) | {"kv_usage": 0.1 + 100 * t / CACHE.capacity_tokens}

    polls = window(60, filling, lambda t: stops(20)(t) | {"generation_tokens": answers * t})
    assert progress_of(polls).filling_seconds == 39.0
    at_the_end = window(60, filling, lambda t: stops(20)(t) | {"decode_steps": 30.0 * t})
    dropped = window(
        60, filling, lambda t: {name: value for name, value in stops(20)(t).items() if name != "generation_tokens"}
    )
    assert progress_of(at_the_end).filling_seconds == progress_of(dropped).filling_seconds == 0.0
    assert progress_of(polls).filled_ratio == pytest.approx(share)


def test_without_the_size_of_the_cache_an_answer_beside_leaves_it_open():
    def found(answers: float) -> float:
        polls = window(
            60,
            lambda t: running(t) | {"kv_usage": 0.001 * t},
            lambda t: stops(20)(t) | {"generation_tokens": answers * t},
            cache=None,
        )
        return progress_of(polls).filled_ratio

    assert (found(0.0), found(1.0)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("usage", "counters"),
    [
        (lambda t: 0.5 + 0.001 * t, works),
        (lambda t: 0.5 + 0.01 * (t % 7), stops(20)),
        (lambda t: 0.5, stops(20)),
    ],
    ids=["answers come out", "the cache falls, too", "the cache stays"],
)
def test_whatever_else_is_no_long_prompt(usage, counters):
    assert progress_of(window(60, lambda t: running(t) | {"kv_usage": usage(t)}, counters)).filling_seconds == 0.0


def test_a_batch_out_of_which_nothing_comes_while_the_cache_falls_and_rises_loops():
    found = progress_of(window(60, lambda t: running(t) | {"kv_usage": 0.5 + 0.01 * (t % 7)}, stops(20)))
    assert found.looping_seconds == 39.0


def test_requests_that_wait_while_nothing_runs_and_nothing_comes_out_stand_still():
    waits = {"running": 0.0, "waiting": 3.0, "waiting_deferred": 0.0, "kv_usage": 0.1}
    assert progress_of(window(60, lambda t: waits, stops(20))).still_seconds == 39.0
    assert progress_of(window(60, lambda t: waits | {"waiting_deferred": 3.0}, stops(20))).still_seconds == 0.0


def test_pooling_shows_in_prompts_only_and_is_progress():
    def pooling(t: int) -> dict[str, float]:
        return {"steps": 6.0 * t, "prompt_tokens": 2000.0 * t, "generation_tokens": 0.0, "finished": 20.0 * t}

    found = progress_of(window(60, lambda t: {"running": 0.0, "waiting": 5.0, "kv_usage": 0.0}, pooling))
    assert (found.frozen_seconds, found.still_seconds) == (0.0, 0.0)


@pytest.mark.parametrize(
    "gauges", [{"awake": 0.0}, {"updating": 1.0}, {"pauses": 2.0, "resumes": 1.0}], ids=["asleep", "updating", "paused"]
)
def test_who_was_stopped_on_purpose_is_paused_and_never_stands_still(gauges):
    found = progress_of(window(60, lambda t: running(t) | gauges, stops(20)))
    assert found.paused_by
    assert (found.frozen_seconds, found.still_seconds) == (0.0, 0.0)


def test_who_goes_on_is_not_paused():
    assert not progress_of(window(60, lambda t: running(t) | {"pauses": 2.0, "resumes": 2.0}, works)).paused_by


def test_polls_before_another_process_answered_say_nothing_of_its_progress():
    polls = window(60, running, stops(0))
    polls.joined = polls.t - 5.0
    assert progress_of(polls).frozen_seconds == 5.0


def test_a_page_that_keeps_its_last_step_and_has_nothing_left_is_no_riddle() -> None:
    def gauges(running: float) -> dict[str, float]:
        return {"keeps_last_step": 1.0, "running": running, "waiting": 0.0}

    def last_step_seconds(running: float) -> float:
        return progress_of(window(40, lambda _: gauges(running), lambda t: {"started": min(t, 10.0)})).last_step_seconds

    assert (last_step_seconds(1.0), last_step_seconds(0.0)) == (29.0, 0.0)


def test_what_only_histograms_count_moves_too() -> None:
    made = window(40, lambda _: {"running": 3.0}, lambda t: {"started": 1.0, "token_gaps": 400.0 * t})
    assert progress_of(made).frozen_seconds == 0.0
