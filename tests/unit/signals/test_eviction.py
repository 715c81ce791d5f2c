"""Eviction by the engine's own past: by hand, and against what the lab's block pool booked."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from kvpressure.model.verdict import Cause
from kvpressure.signals.eviction import Eviction, HitCurve
from tests.support.engines import THRESHOLDS, window
from tests.support.tools import FIXTURES
from tests.support.verdicts import views

LAB = FIXTURES / "lab" / "workingset"
PROMPT = 1_000.0
BUSY = 0.8


def served(curve: HitCurve, begin: float, seconds: int, turnover: float, hits: float, busy: float = BUSY) -> Eviction:
    """What is told after an engine served prompts of `PROMPT` tokens for so long, one a second."""
    past = window(
        60,
        lambda _: {"running": 1.0},
        lambda t: {
            "finished_prompt_tokens": PROMPT * t,
            "finished_prompts": t,
            "prefill_seconds": busy * t,
        },
    )
    derived = {"cache_turnover_seconds": turnover, "prefix_cache_hit_ratio": hits}
    told = Eviction()
    for second in range(seconds):
        told = curve.take(begin + second, past, derived, THRESHOLDS)
    return told


def test_hits_that_fell_with_the_turnover_are_computed_again():
    curve = HitCurve()
    served(curve, 0.0, 120, turnover=200.0, hits=0.8)
    told = served(curve, 120.0, 90, turnover=10.0, hits=0.2)
    assert told.hit_ratio_before == pytest.approx(0.8)
    assert told.recomputed_ratio == pytest.approx(0.6 / 0.8)
    assert told.time_ratio == pytest.approx(BUSY * 0.6 / 0.8)
    assert told.turnovers == pytest.approx(9.0)


def test_a_reset_ends_before_the_cache_is_written_over():
    curve = HitCurve()
    served(curve, 0.0, 120, turnover=200.0, hits=0.8)
    assert served(curve, 120.0, 60, turnover=100.0, hits=0.0).turnovers < 1.0
    assert served(curve, 180.0, 1, turnover=200.0, hits=0.8).turnovers == 0.0


def test_a_restart_begins_to_count_anew():
    curve = HitCurve()
    served(curve, 0.0, 120, turnover=200.0, hits=0.8)
    assert served(curve, 120.0, 30, turnover=10.0, hits=0.0).turnovers > 1.0
    curve.restarted()
    assert served(curve, 150.0, 1, turnover=10.0, hits=0.0).turnovers == pytest.approx(0.1)


def test_without_a_slower_turnover_nothing_is_known():
    curve = HitCurve()
    told = served(curve, 0.0, 600, turnover=10.0, hits=0.1)
    assert told.hit_ratio_before is None
    assert told.recomputed_ratio is None
    assert served(curve, 600.0, 60, turnover=200.0, hits=0.1).recomputed_ratio is None


def test_too_short_a_past_is_no_measure():
    curve = HitCurve()
    served(curve, 0.0, int(THRESHOLDS.eviction_known_min_seconds) // 2, turnover=200.0, hits=0.8)
    assert served(curve, 60.0, 60, turnover=10.0, hits=0.2).hit_ratio_before is None


def test_a_quiet_hour_is_remembered_over_many_octaves():
    curve = HitCurve()
    for visit in range(8):
        served(curve, visit * 10.0, 10, turnover=2.0 ** (5 + visit) * 1.5, hits=0.8)
    assert served(curve, 80.0, 60, turnover=10.0, hits=0.2).hit_ratio_before == pytest.approx(0.8)
    assert [ratio for _, ratio in sorted(curve.ratios().items())] == pytest.approx([0.2, *[0.8] * 8])


def eviction_seconds(path: Path) -> tuple[set[int], set[int]]:
    """Seconds in which a fifth of what was computed was computed before, over 20 s; and those called eviction."""
    with lzma.open(path) as file:
        rows = [json.loads(line) for line in file]
    caches = {round(row["t"]): row["truth"].get("cache") or {} for row in rows}
    true = set()
    for t in caches:
        near = [caches.get(other, {}) for other in range(t - 10, t + 11)]
        computed, again = (sum(one.get(name, 0) for one in near) for name in ("computed", "again"))
        if computed and again >= 0.2 * computed:
            true.add(t)
    found = (view.diagnosis for view in views(path))
    told = {round(one.t) for one in found if one and one.cause is Cause.KV_CACHE_PRESSURE and one.detail == "eviction"}
    return true, told


def test_sessions_that_join_are_told_once_the_pool_is_too_small_for_all():
    true, told = eviction_seconds(LAB / "joins-0.33.0.jsonl.xz")
    assert len(true) > 200
    assert len(told & true) >= 0.8 * len(true)
    assert told <= true


@pytest.mark.parametrize("name", ["cold", "reset", "scattered", "trace-light", "uncached", "calm-130"])
def test_what_is_no_eviction_is_never_told(name):
    _, told = eviction_seconds(LAB / f"{name}-0.33.0.jsonl.xz")
    assert told == set()
