"""Contexts that are evicted, looked back at in a Prometheus that scraped every 15 or 30 s."""

import json
import lzma
from typing import Any

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.reader import PageReader
from kvpressure.prometheus.client import Server
from kvpressure.prometheus.names import Discovered
from kvpressure_incidents.follow import Follower, Task
from kvpressure_incidents.words import lost
from tests.support.past_incidents import TARGET
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.recorded

JOINS = FIXTURES / "lab" / "workingset" / "joins-0.33.0.jsonl.xz"


def looked_back(step: float) -> tuple[list[dict[str, Any]], dict[float, float]]:
    """The incidents of sessions that join, and the prompt tokens computed again each second, by the block pool."""
    thresholds = load_thresholds()
    task = Task(Server("http://none"), Discovered(TARGET, "vllm", step), (), None, (thresholds,), 60.0)
    follower, reader = Follower(task, step, thresholds), PageReader()
    again, due = dict[float, float](), 0.0
    with lzma.open(JOINS, "rt") as file:
        for row in map(json.loads, file):
            again[row["t"]] = row["truth"].get("cache", {}).get("again", 0)
            if row["t"] >= due:
                due = row["t"] + 0.99 * step
                follower.page(reader.read(row["page"].encode(), row["t"]))
    follower.stretch_ends(last=True)
    return list(follower.incidents()), again


@pytest.mark.parametrize("step", [15.0, 30.0])
def test_what_was_computed_again_is_counted(step: float):
    found, again = looked_back(step)
    told = [one for one in found if one["cause"] == "kv_cache_pressure"]
    assert told
    assert {one["detail"] for one in told} == {"eviction"}
    for one in told:
        # The first interval is that before the first verdict.
        span = one["began"] - step, one["ended"] or max(again)
        true = sum(tokens for t, tokens in again.items() if span[0] < t <= span[1])
        assert one["recomputed_tokens"] == pytest.approx(true, rel=0.25)
        assert "prompt tokens computed again" in lost(one)
    assert sum(one["seconds"] for one in told) >= 150.0
