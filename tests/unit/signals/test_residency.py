"""The age at eviction that an engine measures itself, by hand and against the lab's block pool."""

import json
import lzma
from collections import defaultdict

import pytest

from kvpressure.signals import compute
from tests.support.engines import CONTEXT, histogram, window
from tests.support.tools import FIXTURES
from tests.support.verdicts import views

LAB = FIXTURES / "lab" / "workingset"


def derive(count: float, seconds: float, **counters: float):
    past = window(
        61,
        lambda _: {"running": 1.0, "kv_usage": 0.5},
        lambda t: {name: rate * t for name, rate in counters.items()},
        lambda t: {"idle_before_evict": histogram((10.0, 20.0), (0.0, count * t, count * t), seconds * t)},
    )
    return compute(past, CONTEXT).derived.get("cache_eviction_age_seconds")


def test_the_time_of_the_request_comes_off():
    assert derive(2.0, 30.0, inference_seconds=4.0, ended=1.0) == pytest.approx(11.0)
    assert derive(2.0, 6.0, inference_seconds=4.0, ended=1.0) is None


def test_it_is_absent_while_nothing_is_evicted_and_where_the_requests_time_is_not_known():
    assert derive(0.0, 0.0, inference_seconds=4.0, ended=1.0) is None
    assert derive(2.0, 30.0) is None


@pytest.mark.recorded
@pytest.mark.parametrize("name", ["cold", "joins", "trace-light"])
def test_it_is_the_age_that_the_pool_saw(name):
    path = LAB / f"{name}-0.33.0.jsonl.xz"
    ages: dict[int, tuple[float, int]] = {}
    with lzma.open(path) as file:
        for row in map(json.loads, file):
            cache = row["truth"].get("cache") or {}
            if "age" in cache:
                ages[round(row["t"])] = cache["age"][0], cache["evicted"]
    minutes: dict[int, list[float]] = defaultdict(list)
    for view in views(path):
        t = round(view.t)
        age = view.derived.get("cache_eviction_age_seconds")
        near = [ages[second] for second in range(t - 60, t + 1) if second in ages]
        evicted = sum(many for _, many in near)
        if t % 60 == 0 and isinstance(age, float) and evicted:
            minutes[t] = [age, sum(mean * many for mean, many in near) / evicted]
    assert len(minutes) >= 2
    assert all(age == pytest.approx(true, rel=0.15) for age, true in minutes.values())
