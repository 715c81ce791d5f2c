"""Demand that is not served: which way of standing still it is, and what is said of it."""

from dataclasses import replace

import pytest

from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.diagnosis.predicates import stall as predicates
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView, role_of
from kvpressure.signals.stall import Stall
from tests.support.verdicts import facts, grounds, inputs, made, rule

NOBODY = {"seconds": 600.0, "polls": 100, "tokens": 0.0, "filled_seconds": 600.0, "waits": 2.0}
RUNS = NOBODY | {"runs": 2.0, "tokens": 600.0, "tokens_per_second": 1.0}


@pytest.mark.parametrize(
    ("usage", "stall", "name", "said"),
    [
        (0.4, NOBODY | {"falls": 2, "runs": 1.0}, "computed_again", "2 times what was computed was dropped"),
        (0.95, NOBODY | {"full_ratio": 0.95, "runs": 1.0}, "computed_again", "has filled the cache to 95%"),
        (0.0, NOBODY, "too_large", "The cache is empty, and the first request in the queue is not admitted"),
        (0.4, NOBODY, "held_blocks", "40% of the KV cache is in use. Requests that do not run hold it"),
        (0.4, NOBODY | {"deferred": 2.0, "grows": True}, "deferred", "All that wait are deferred"),
        (0.4, NOBODY | {"runs": 2.0}, "silent", "Not one token was generated meanwhile."),
        (0.4, RUNS | {"tokens_per_second": 0.01}, "trickle", "0.01 tokens/s are generated."),
        (0.4, RUNS | {"request_tokens_per_second": 90.0, "before_tokens_per_second": 500.0}, "trickle", "it made 500"),
        (0.4, RUNS | {"request_tokens_per_second": 90.0, "deferred": 1.0}, "trickle", "each request had 90.0 before"),
        (
            0.4,
            RUNS | {"request_tokens_per_second": 90.0, "step_seconds": 10.0, "before_step_seconds": 0.02},
            "crawling",
            "A step takes 10.0 s, and took 0.02 s at its fastest.",
        ),
    ],
)
def test_nobody_is_served_in_one_of_these_ways(usage: float, stall: dict[str, float], name: str, said: str):
    polls = inputs(kv_usage_ratio=usage, blocked_ratio=None)
    made = replace(polls, window=replace(polls.window, stall=Stall(**stall)))
    won = rule(made)
    assert won.id == f"stuck.{name}"
    assert said in won.grounds(facts(made))


ALONE = NOBODY | {"filled_seconds": 0.0, "runs": 1.0}
NO_TOKEN = "2 requests run, 3 wait. Not one token was generated meanwhile."
COMPUTED = "For 600 s a prompt has been computed, and its client has not got a token yet."


@pytest.mark.parametrize(
    ("stall", "said"),
    [
        (
            NOBODY | {"runs": 2.0, "seconds": 119.0},
            f"No request has got its first token or ended for 119 s, since 23:58:01 UTC. {NO_TOKEN}",
        ),
        (
            NOBODY | {"runs": 2.0},
            f"No request has got its first token or ended for 10 minutes, since 23:50:00 UTC. {NO_TOKEN}",
        ),
        (ALONE, COMPUTED),
        (
            ALONE | {"runs": 3.0, "tokens": 6.0, "tokens_per_second": 0.01},
            f"{COMPUTED} All others together get 0.01 tokens/s meanwhile.",
        ),
    ],
)
def test_the_grounds_say_for_how_long_and_who_waits(stall: dict[str, float], said: str):
    polls = inputs(kv_usage_ratio=0.4, blocked_ratio=None, waiting=3.0, demand=5.0)
    made = replace(polls, window=replace(polls.window, stall=Stall(**stall)))
    assert rule(made).grounds(facts(made)) == said


@pytest.mark.parametrize("unknown", [{"tokens_per_second": None}, {"runs": 0.0}, {"request_tokens_per_second": None}])
def test_without_a_rate_to_compare_with_tokens_do_not_trickle(unknown: dict[str, float | None]):
    polls = inputs(kv_usage_ratio=0.4, blocked_ratio=None)
    made = replace(polls, window=replace(polls.window, stall=Stall(**RUNS | unknown)))
    assert predicates.trickles.state(facts(made)) is False


def test_whether_few_that_wait_are_sessions_is_not_known_where_the_page_does_not_say_why_they_wait():
    polls = inputs(kv_usage_ratio=0.0, reasons_known=False, blocked_ratio=None)
    made = replace(
        polls,
        signals=polls.signals | {"computed_prompt_tokens"},
        window=replace(polls.window, stall=Stall(**NOBODY | {"waits": 1.0})),
    )
    assert predicates.too_large.state(facts(made)) is None


# Where neither the pool's size nor what those who run hold is known, a queue is not called healthy, nor a hang.


QUEUED = {"demand": 14.0, "waiting": 10.0, "waiting_ratio": 1.0, "kv_usage_ratio": 0.8, "busy": True}


def cause(**recent: float | bool | None) -> Cause:
    return rule(made(QUEUED | recent)).cause


@pytest.mark.parametrize(
    ("recent", "expected"),
    [
        ({}, Cause.UNKNOWN),
        ({"waiting_ratio": 0.6}, Cause.HEALTHY),
        ({"kv_usage_ratio": 0.95}, Cause.KV_CACHE_PRESSURE),
        ({"at_cap": True, "kv_usage_ratio": 0.3}, Cause.CONCURRENCY_BOUND),
        ({"steadiness": 1.0}, Cause.UNKNOWN),
        ({"blocked_ratio": 1.0, "blocked_by_long_ratio": 1.0}, Cause.KV_CACHE_PRESSURE),
        ({"deferred_ratio": 1.0}, Cause.DEFERRED),
    ],
    ids=[
        "all wait all the time",
        "a queue that comes and goes",
        "full",
        "at a cap",
        "steady, room unseen",
        "learned",
        "put off",
    ],
)
def test_a_queue_before_a_pool_of_no_known_size(recent: dict[str, float | bool], expected: Cause) -> None:
    assert cause(**recent) is expected


@pytest.mark.parametrize(("usage", "expected"), [(0.89, Cause.KV_CACHE_PRESSURE), (0.3, Cause.STUCK)])
def test_nothing_runs_beside_a_cache_without_room_because_of_it(usage: float, expected: Cause) -> None:
    assert cause(kv_usage_ratio=usage, demand=10.0, generated_tokens=0.0, still_seconds=60.0) is expected


def test_what_is_missing_is_said() -> None:
    assert grounds(made(QUEUED)) == (
        "no_capacity",
        "10 requests wait; the page does not say how much the cache holds.",
    )


# What limits a decode engine of SGLang's, whose requests wait in queues beside the scheduler's own.


LABELS = 'engine_type="{kind}",model_name="m",pp_rank="0",tp_rank="0"'


def page(t: int, kind: str, for_room: int, in_transfer: int, usage: float) -> str:
    """One of a server that answers two requests of 500 + 200 tokens a second, sixteen at a time."""
    scheduler = {
        "num_running_reqs": 16,
        "num_queue_reqs": 0,
        "num_decode_prealloc_queue_reqs": for_room,
        "num_decode_transfer_queue_reqs": in_transfer,
        "token_usage": usage,
        "max_total_num_tokens": 10_000,
        "num_retracted_requests_total": 0,
        'realtime_tokens_total{mode="decode"}': 400 * t,
    }
    server = {
        "prompt_tokens_total": 1000 * t,
        "generation_tokens_total": 400 * t,
        "num_requests_total": 2 * t,
        'prompt_tokens_histogram_bucket{le="400.0"}': 0,
        'prompt_tokens_histogram_bucket{le="600.0"}': 2 * t,
        'prompt_tokens_histogram_bucket{le="+Inf"}': 2 * t,
        "prompt_tokens_histogram_count": 2 * t,
        "prompt_tokens_histogram_sum": 1000 * t,
    }
    lines = [_line(name, value, LABELS.format(kind=kind)) for name, value in scheduler.items()]
    return "".join([*lines, *(_line(name, value, 'model_name="m"') for name, value in server.items())])


def _line(name: str, value: float, labels: str) -> str:
    name, _, own = name.removesuffix("}").partition("{")
    return f"sglang:{name}{{{','.join(filter(None, (own, labels)))}}} {value}\n"


def view(kind: str, for_room: int, in_transfer: int, usage: float) -> EngineView:
    pipeline, reader, found = Pipeline(PipelineSettings(), load_thresholds()), PageReader(), None
    for t in range(1, 90):
        (found,) = pipeline.on_page(
            Target("a"), reader.read(page(t, kind, for_room, in_transfer, usage).encode(), float(t))
        )
    return found


@pytest.mark.parametrize(
    ("queues", "usage", "cause", "detail"),
    [
        ((0, 0), 0.97, Cause.HEALTHY, ""),
        ((9, 1), 0.97, Cause.KV_CACHE_PRESSURE, "admission"),
        ((1, 9), 0.6, Cause.DEFERRED, "remote_kv"),
    ],
)
def test_a_decode_engine_is_judged_by_what_its_requests_wait_for(queues, usage: float, cause: Cause, detail: str):
    found = view("decode", *queues, usage)
    assert (found.diagnosis.cause, found.diagnosis.detail, role_of(found.derived)) == (cause, detail, "decode")
