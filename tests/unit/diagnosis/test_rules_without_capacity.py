"""Where neither the pool's size nor what those who run hold is known, a queue is not called healthy, nor a hang."""

from __future__ import annotations

import pytest

from kvpressure.model.verdict import Cause
from tests.support.verdicts import grounds, made, rule

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
