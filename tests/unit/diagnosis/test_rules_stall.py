"""Demand that is not served: which way of standing still it is, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvpressure.diagnosis.predicates import stall as predicates
from kvpressure.signals.stall import Stall
from tests.support.verdicts import facts, inputs, rule

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
