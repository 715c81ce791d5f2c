"""Capacity misses by KV events: the curve, and what the verdict rests on."""

import dataclasses
import math
import random

import pytest

from kvpressure.model.kv_events import BOUNDS, KvEvents, of_rank
from kvpressure.signals.eviction import Eviction
from kvpressure.signals.kv_events import NEWEST_SECONDS, EventWindow, Misses, kept_by, with_events
from kvpressure.signals.points import Point
from tests.support.engines import CACHE, THRESHOLDS, window

COMPUTED = 1000.0
"""Prompt tokens computed a second."""
HITS = 0.2
BLOCKS = CACHE.capacity_tokens / CACHE.block_size
DERIVED = {"computed_prompt_tokens_per_second": COMPUTED, "prefix_cache_hit_ratio": HITS}


def report(t: float, *, missed_per_second: float = 0.0, needs: float = 1.0, **more) -> KvEvents:
    """So many tokens missed a second, all of which `needs` more blocks would have kept."""
    index = next(i for i, bound in enumerate(BOUNDS) if needs <= bound)
    missed = missed_per_second * t
    by = tuple(missed if i == index else 0.0 for i in range(len(BOUNDS) + 1))
    evicted = int(100 * t)
    values = {"reach": evicted, "evicted_blocks": evicted, "misses": int(missed / 16), "since": 0.0} | more
    return KvEvents(t, missed_tokens=missed, missed_by_blocks=by, **values)


def poll(t: float, **counters: float) -> Point:
    return Point(t, {"running": 1.0, "kv_usage": 0.5}, {"generation_tokens": 0.0} | counters)


def taken(seconds: int = 120, **more) -> EventWindow:
    events = EventWindow(60.0)
    for t in range(seconds):
        events.take(report(float(t), **more), poll(float(t)))
    return events


def page():
    return window(
        60,
        lambda _: {"running": 1.0, "kv_usage": 0.5},
        lambda t: {"prefill_seconds": 0.5 * t, "computed_prompt_tokens": COMPUTED * t},
    )


def test_the_share_computed_again_is_misses_over_prompt_tokens_computed():
    found = taken(missed_per_second=400.0).misses(page(), DERIVED)
    assert found.recomputed_ratio == pytest.approx(0.4)
    assert found.error_ratio == 0.0
    assert found.complete


def test_a_pool_that_would_have_kept_them_would_have_found_them():
    found = taken(missed_per_second=400.0, needs=0.4 * BLOCKS).misses(page(), DERIVED)
    assert found.hit_ratio_by_pool == pytest.approx({1.25: HITS, 1.5: 0.52, 2.0: 0.52, 3.0: 0.52, 4.0: 0.52, 8.0: 0.52})


def test_hits_are_absent_of_pools_that_are_larger_than_what_is_remembered():
    found = taken(missed_per_second=400.0, reach=int(6000 + 1.2 * BLOCKS)).misses(page(), DERIVED)
    assert set(found.hit_ratio_by_pool) == {1.25, 1.5, 2.0}
    assert 0.5 not in found.hit_ratio_by_pool


def test_without_a_pool_of_known_size_there_is_no_curve():
    for cache in (dataclasses.replace(CACHE, capacity_tokens=None), dataclasses.replace(CACHE, layers_differ=True)):
        engine = page()
        engine.cache = cache
        found = taken(missed_per_second=400.0).misses(engine, DERIVED)
        assert (found.hit_ratio_by_pool, found.complete) == ({}, False)
        assert found.recomputed_ratio == pytest.approx(0.4)


def test_the_error_is_that_of_the_sample():
    found = taken(missed_per_second=400.0, sampled_ratio=0.25, misses=0).misses(page(), DERIVED)
    assert found.error_ratio == 0.0
    found = EventWindow(60.0)
    for t in range(120):
        found.take(report(float(t), missed_per_second=400.0, sampled_ratio=0.25, misses=t), poll(float(t)))
    assert found.misses(page(), DERIVED).error_ratio == pytest.approx((0.75 / 60) ** 0.5)


def test_nothing_is_known_too_soon_nor_while_nothing_is_computed():
    assert taken(10).misses(page(), DERIVED) is None
    events = taken()
    for t in range(120, 130):
        events.take(report(float(t), since=119.5), poll(float(t)))
    assert events.misses(page(), DERIVED) is None
    assert taken().misses(page(), {}) is None
    assert EventWindow(60.0).misses(page(), DERIVED) is None


def test_a_source_that_is_read_anew_or_not_at_all_begins_anew():
    events = taken(missed_per_second=400.0)
    events.take(report(1.0), poll(1.0))
    events.take(report(120.0, evicted_blocks=1), poll(120.0))
    assert events.misses(page(), DERIVED) is None
    events = taken(missed_per_second=400.0)
    events.take(None, poll(120.0))
    assert events.families(None) == {}


@pytest.mark.parametrize("back", [0.5, 3600.0])
def test_a_clock_that_is_set_back_neither_freezes_the_window_nor_empties_it(back):
    events = EventWindow(60.0)
    for second in range(240):
        wall = 10_000.0 + second - (back if second >= 120 else 0.0)
        reported = dataclasses.replace(report(float(second), missed_per_second=400.0), t=wall, since=10_000.0)
        events.take(reported, poll(wall))
        if second >= 30:
            found = events.misses(page(), DERIVED)
            assert found.recomputed_ratio == pytest.approx(0.4, rel=0.05)
    assert events.families(found)["kv_capacity_miss_tokens_total"] == pytest.approx(400.0 * 239)
    assert found.complete


def test_what_is_forgotten_after_the_clock_was_set_back_is_known_to_be():
    events = EventWindow(60.0)
    for second in range(200):
        wall = 10_000.0 + second - (3600.0 if second >= 120 else 0.0)
        since = 10_000.0 if second < 190 else 10_000.0 + 190 - 3600.0
        events.take(dataclasses.replace(report(float(second)), t=wall, since=since), poll(wall))
    assert events.misses(page(), DERIVED) is None


def test_with_the_time_of_a_prompt_token_the_share_of_time_is_that_of_the_misses():
    events, rng, stored, steps = EventWindow(60.0), random.Random(1), 0.0, 0.0
    for t in range(120):
        reported = dataclasses.replace(report(float(t), missed_per_second=400.0), stored_tokens=stored)
        events.take(reported, poll(float(t), steps=steps, generation_tokens=10.0 * t))
        prompts = rng.uniform(500.0, 1_500.0)  # at 0.5 ms each, and 20 ms a step without
        stored, steps = stored + prompts + 10.0, steps + (1.0 - prompts * 0.0005) / 0.02
    found = events.misses(page(), DERIVED)
    assert found.time_ratio == pytest.approx(400.0 * 0.0005, rel=0.02)
    for (recomputed, takes), seconds in zip(found.newest, (60.0, *NEWEST_SECONDS), strict=True):
        # Of a shorter time a mean is less certain, and counts for less.
        few = seconds < 20.0
        assert takes == pytest.approx(0.2 * min(1.0, math.sqrt(seconds / 20.0)), rel=0.03 if few else 0.02)
        assert recomputed == pytest.approx(0.4, rel=0.25 if few else 0.15)
    combined = with_events(Eviction(), found, page(), DERIVED, THRESHOLDS)
    assert (combined.time_ratio, combined.newest) == (found.time_ratio, found.newest)


def test_one_long_prompt_is_no_rate_of_misses():
    """It was 41 s of a recorded chat at a fifth of its sessions."""

    def newest(prompts: int) -> tuple[float, float]:
        events, stored, steps = EventWindow(60.0), 0.0, 0.0
        for t in range(120):
            missed = 9_000.0 if t >= 112 else 0.0
            reported = dataclasses.replace(report(float(t)), missed_tokens=missed, missed_squares=missed**2 / prompts)
            reported = dataclasses.replace(reported, stored_tokens=stored)
            events.take(reported, poll(float(t), steps=steps, generation_tokens=10.0 * t))
            prompt = 500.0 + 500.0 * (t % 3)
            stored, steps = stored + prompt + 10.0, steps + (1.0 - prompt * 0.0005) / 0.02
        return events.misses(page(), DERIVED).newest[1]

    assert newest(1) == (0.0, 0.0)
    assert newest(3) == pytest.approx((0.45, 0.225), rel=0.1)


def test_the_series_are_there_while_events_are_read():
    events = taken(missed_per_second=400.0, counts={"batches": 5, "stored": 3, "new": 1})
    series = events.families(events.misses(page(), DERIVED))
    assert series["kv_capacity_miss_tokens_total"] == pytest.approx(400.0 * 119)
    assert series["prefix_cache_pool_hit_ratio"]["2"] == pytest.approx(0.52)
    assert series["kv_events_total"] == {"stored": 3.0, "removed": 0.0, "cleared": 0.0, "unknown": 0.0}
    assert series["kv_event_batches_total"]["read"] == 5.0
    assert EventWindow(60.0).families(None) == {}


PAST = Eviction(hit_ratio=HITS, hit_ratio_before=0.8, recomputed_ratio=0.7, time_ratio=0.5, turnovers=3.0)


def combined(past: Eviction, **misses) -> Eviction:
    return with_events(past, Misses(**misses), page(), DERIVED, THRESHOLDS)


def test_events_need_no_past():
    found = combined(Eviction(), recomputed_ratio=0.4)
    assert found.by_events
    assert found.recomputed_ratio == 0.4
    assert found.time_ratio == pytest.approx(0.4 * 0.5)
    assert found.turnovers >= THRESHOLDS.eviction.turnover_min_count


def test_events_that_know_the_whole_pool_overrule_the_past():
    assert combined(PAST, recomputed_ratio=0.0, complete=True).recomputed_ratio == 0.0
    assert combined(PAST, recomputed_ratio=0.0, complete=False) == PAST
    assert combined(PAST, recomputed_ratio=0.8, complete=False).by_events
    reset = dataclasses.replace(PAST, turnovers=0.5)
    assert combined(reset, recomputed_ratio=0.0).recomputed_ratio == 0.0


def test_without_events_the_past_is_all_there_is():
    assert with_events(PAST, None, page(), DERIVED, THRESHOLDS) == PAST


def test_tokens_between_two_bounds_are_spread_evenly():
    missed = [0.0] * (len(BOUNDS) + 1)
    missed[9] = 90.0
    middle = (BOUNDS[8] + BOUNDS[9]) / 2
    assert kept_by(missed, middle) == pytest.approx(45.0)
    assert kept_by(missed, BOUNDS[8]) == 0.0
    assert kept_by(missed, BOUNDS[9]) == pytest.approx(90.0)
    missed[-1] = 10.0
    assert kept_by(missed, 2 * BOUNDS[-1]) == 100.0
    assert kept_by(missed, 0.0) == 0.0


def test_events_are_those_of_the_engines_own_rank():
    first, second = (KvEvents(1.0, 0.0, rank=rank) for rank in (0, 1))
    assert of_rank((first, second), "1", alone=False) is second
    assert of_rank((second,), "0", alone=True) is second
    assert of_rank((second,), "0", alone=False) is None
    assert of_rank((), "0", alone=True) is None


@pytest.mark.fault(
    "events of a publisher were dropped or are missing: it sent more than may be read, or was not read for a while",
    "figures of a window in which any are missing are absent, never smaller",
)
@pytest.mark.parametrize("kind", ["skipped", "oversized", "forgotten", "bad"])
def test_figures_are_absent_while_events_were_lost(kind: str):
    events = taken(missed_per_second=400.0)
    assert events.misses(page(), DERIVED) is not None
    for t in range(120, 200):
        lost = {kind: 1 if t < 130 else 2}
        events.take(report(float(t), missed_per_second=400.0, counts=lost), poll(float(t)))
        series = events.families(events.misses(page(), DERIVED))
        known = {"kv_capacity_miss_tokens_total", "kv_evicted_blocks_total"} & series.keys()
        assert bool(known) == (t >= 190), t
        assert series["kv_event_batches_total"].get(kind, 0.0) == (0.0 if kind == "forgotten" else lost[kind])
    assert events.misses(page(), DERIVED) is not None
