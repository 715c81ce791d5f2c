"""What a page tells of the prefix cache, against arithmetic by hand and against the lab's own block pool."""

import dataclasses
import json
import lzma
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.signals import compute
from tests.support.engines import CACHE, CONTEXT, THRESHOLDS, window
from tests.support.tools import FIXTURES

NAMES = {"prefix_cache_hit_ratio", "computed_prompt_tokens_per_second"}
LEAST, MOST = "cache_eviction_age_min_seconds", "cache_eviction_age_max_seconds"
AGES = {"cache_turnover_seconds", LEAST, MOST}


def derive(gauges, counters, cache=CACHE):
    past = window(60, gauges, counters)
    past.cache = cache
    return compute(past, CONTEXT).derived


def served(prompt: float, hit_ratio: float, generated: float, **more: float):
    """Counters of an engine that serves so many tokens a second."""
    rates = {
        "prompt_tokens": prompt,
        "prefix_queries": prompt,
        "prefix_hits": hit_ratio * prompt,
        "generation_tokens": generated,
        **more,
    }
    return lambda t: {name: rate * t for name, rate in rates.items()}


def half_used(_):
    return {"running": 1.0, "kv_usage": 0.5}


def test_turnover_is_free_tokens_over_those_written():
    derived = derive(half_used, served(1000.0, 0.8, 50.0))
    assert derived["prefix_cache_hit_ratio"] == pytest.approx(0.8)
    assert derived["computed_prompt_tokens_per_second"] == pytest.approx(200.0)
    assert "computed_prompt_tokens_total" not in derived  # `Estimates` adds them up
    free = 0.5 * CACHE.capacity_tokens
    assert derived["cache_turnover_seconds"] == pytest.approx(free / 250.0)
    assert derived["cache_eviction_age_min_seconds"] == pytest.approx(free / 1050.0)
    assert derived["cache_eviction_age_max_seconds"] == pytest.approx(free / 250.0)


def test_a_block_waits_behind_all_that_were_free_when_it_was_freed():
    """Not behind those that are free now: what ended 10 s ago had half of the cache, and is behind it in the queue."""

    def used(t: float) -> dict[str, float]:
        return {"running": 1.0, "kv_usage": 0.5 if t <= 50.0 else 0.0}

    tokens = CACHE.capacity_tokens or 0
    derived = derive(used, served(tokens / 40.0, 0.0, 0.0))
    assert derived["cache_eviction_age_min_seconds"] == pytest.approx(20.0)
    assert derived["cache_eviction_age_max_seconds"] == pytest.approx(20.0)


def test_what_the_page_counts_as_computed_goes_before_what_hits_leave():
    derived = derive(half_used, served(1000.0, 0.8, 50.0, computed_prompt_tokens=300.0))
    assert derived["computed_prompt_tokens_per_second"] == pytest.approx(300.0)
    assert derived["computed_prompt_tokens_total"] == pytest.approx(300.0 * 59)


def test_the_longest_age_is_never_below_the_least():
    for hits in (0.0, 0.5, 1.0):
        derived = derive(half_used, served(1000.0, hits, 50.0))
        assert derived["cache_eviction_age_min_seconds"] <= derived["cache_eviction_age_max_seconds"]


def test_nobody_knows_when_blocks_go_while_nothing_is_written():
    assert not AGES & derive(half_used, served(0.0, 0.0, 0.0)).keys()
    assert not NAMES & derive(half_used, lambda t: {"generation_tokens": 5.0 * t}).keys()


def test_without_caching_all_prompts_are_computed_and_nothing_is_kept():
    off = dataclasses.replace(CACHE, prefix_caching=False)
    derived = derive(half_used, lambda t: {"prompt_tokens": 100.0 * t, "generation_tokens": 5.0 * t}, off)
    assert derived["computed_prompt_tokens_per_second"] == pytest.approx(100.0)
    assert derived["computed_prompt_tokens_total"] == pytest.approx(100.0 * 59)
    assert not (AGES | {"prefix_cache_hit_ratio"}) & derived.keys()


def minutes(path: Path) -> Iterator[tuple[float, float, float]]:
    """Least, measured and most age of the blocks evicted in each whole minute but the first: means over blocks."""
    with lzma.open(path, "rt") as lines:
        truth = {row["t"]: row["truth"]["cache"] for row in map(json.loads, lines)}
    values = {views[0].t: views[0].derived for _, views in Replay(ReplayTarget("t"), THRESHOLDS).views(path) if views}
    begin = min(truth)
    for minute, group in groupby(sorted(truth), lambda t: int((t - begin) // 60)):
        times = list(group)
        ages = [
            (truth[t]["evicted"], derived[LEAST], truth[t]["age"][0], derived[MOST])
            for t in times
            if "age" in truth[t] and (derived := values.get(t, {})).keys() >= AGES
        ]
        blocks = sum(count for count, *_ in ages)
        if minute and blocks >= 50 and times[-1] - times[0] >= 59.0:
            least, age, most = (sum(one[0] * one[place] for one in ages) / blocks for place in (1, 2, 3))
            yield least, age, most


@pytest.mark.recorded
@pytest.mark.parametrize("regime", ["busy-040", "cold", "trace-light", "joins"])
def test_the_age_at_eviction_that_the_labs_pool_shows_lies_within_the_bounds(regime):
    found = list(minutes(FIXTURES / "lab" / "workingset" / f"{regime}-0.33.0.jsonl.xz"))
    assert found
    assert all(least <= age <= most for least, age, most in found)


def test_a_runtime_that_counts_computed_prompts_only_has_no_prompt_token_taken_off_twice():
    # SGLang's counter of tokens by the batch leaves out what its cache had.
    derived = derive(half_used, served(200.0, 0.8, 50.0, prefill_tokens=200.0))
    free = 0.5 * CACHE.capacity_tokens
    assert derived["cache_turnover_seconds"] == pytest.approx(free / 250.0)
    assert derived["cache_eviction_age_min_seconds"] == pytest.approx(free / 1050.0)
