"""Eviction by the engine's own past: by hand, and against what the lab's block pool booked."""

import json
import lzma
import math
from dataclasses import replace
from pathlib import Path

import pytest

from kvpressure.model.verdict import Cause
from kvpressure.signals.eviction import LASTING_SECONDS, Eviction, HitCurve, LastingHarm
from kvpressure.signals.octaves import Hits, Octaves
from kvpressure.signals.past import EngineHistory
from kvpressure.signals.windows import EngineWindow
from tests.support.engines import CACHE, THRESHOLDS, window
from tests.support.tools import FIXTURES
from tests.support.verdicts import views

LAB = FIXTURES / "lab" / "workingset"
PROMPT = 1_000.0
BUSY = 0.8
FREE = 0.5 * CACHE.capacity_tokens


class Engine:
    """An engine that serves prompts of `PROMPT` tokens, one a second, and what is measured of its cache."""

    def __init__(self, siblings: Octaves | None = None) -> None:
        self.curve, self._t, self._written = HitCurve(siblings), 0, 0.0

    def serve(self, seconds: int, *, turnover: float, hits: float) -> Eviction:
        """What is measured after so long, at a turnover (seconds) and a hit ratio."""
        measured = Eviction()
        for _ in range(seconds):
            self._t += 1
            self._written += FREE / turnover
            measured = self.curve.take(self._t, self._past(FREE / turnover, hits), {}, THRESHOLDS)
        return measured

    def _past(self, written: float, hits: float) -> EngineWindow:
        return window(
            2,
            lambda _: {"running": 1.0, "kv_usage": 0.5},
            lambda t: {
                "finished_prompt_tokens": PROMPT * t,
                "finished_prompts": t,
                "prefill_seconds": BUSY * t,
                "computed_prompt_tokens": self._written + written * (t - 1),
                "generation_tokens": 0.0,
                "prefix_queries": 1000.0 * t,
                "prefix_hits": 1000.0 * hits * t,
            },
        )


def test_hits_that_fell_with_the_turnover_are_computed_again():
    engine = Engine()
    engine.serve(120, turnover=200.0, hits=0.8)
    measured = engine.serve(90, turnover=10.0, hits=0.2)
    assert measured.hit_ratio_before == pytest.approx(0.8)
    assert measured.recomputed_ratio == pytest.approx(0.6 / 0.8)
    assert measured.time_ratio == pytest.approx(BUSY * 0.6 / 0.8)
    assert measured.turnovers == pytest.approx(9.0)


def test_where_nothing_is_computed_again_the_time_for_it_is_none_and_known():
    engine = Engine()
    engine.serve(120, turnover=200.0, hits=0.8)
    measured = engine.serve(90, turnover=10.0, hits=0.8)
    assert (measured.recomputed_ratio, measured.time_ratio) == (0.0, 0.0)


def test_a_reset_ends_before_the_cache_is_written_over():
    engine = Engine()
    engine.serve(120, turnover=200.0, hits=0.8)
    assert engine.serve(60, turnover=100.0, hits=0.0).turnovers < 1.0
    assert engine.serve(1, turnover=200.0, hits=0.8).turnovers == 0.0


def test_a_restart_begins_to_count_anew():
    engine = Engine()
    engine.serve(120, turnover=200.0, hits=0.8)
    assert engine.serve(30, turnover=10.0, hits=0.0).turnovers > 1.0
    engine.curve.restarted()
    assert engine.serve(1, turnover=10.0, hits=0.0).turnovers == pytest.approx(0.1)


def test_without_a_slower_turnover_nothing_is_known():
    engine = Engine()
    measured = engine.serve(600, turnover=10.0, hits=0.1)
    assert measured.hit_ratio_before is None
    assert measured.recomputed_ratio is None
    assert engine.serve(60, turnover=200.0, hits=0.1).recomputed_ratio is None


def test_too_short_a_past_is_no_measure():
    engine = Engine()
    engine.serve(int(THRESHOLDS.eviction.known_min_seconds) // 2, turnover=200.0, hits=0.8)
    assert engine.serve(60, turnover=10.0, hits=0.2).hit_ratio_before is None


def test_a_cache_that_next_to_nothing_is_written_to_turns_over_in_the_last_octave():
    assert Octaves().beyond(Hits(math.inf, 0.5, PROMPT, 1.0), THRESHOLDS) is None


def test_a_quiet_hour_is_remembered_over_many_octaves():
    engine = Engine()
    for visit in range(8):
        engine.serve(10, turnover=2.0 ** (5 + visit) * 1.5, hits=0.8)
    assert engine.serve(60, turnover=10.0, hits=0.2).hit_ratio_before == pytest.approx(0.8)


def test_other_replicas_at_a_slower_turnover_stand_for_a_past():
    model = Octaves()
    Engine(model).serve(120, turnover=200.0, hits=0.8)
    measured = Engine(model).serve(90, turnover=10.0, hits=0.2)
    assert measured.hit_ratio_before == pytest.approx(0.8)
    assert measured.by_siblings
    assert measured.evidence == "other replicas of the model"


def test_a_past_at_turnovers_that_were_short_too_does_not_hide_what_others_found():
    model = Octaves()
    Engine(model).serve(120, turnover=2_000.0, hits=0.8)
    engine = Engine(model)
    engine.serve(60, turnover=40.0, hits=0.1)
    measured = engine.serve(90, turnover=10.0, hits=0.1)
    assert measured.hit_ratio_before == pytest.approx(0.8)
    assert measured.by_siblings


def test_the_own_past_goes_before_that_of_others():
    model = Octaves()
    Engine(model).serve(600, turnover=200.0, hits=0.9)
    engine = Engine(model)
    engine.serve(120, turnover=200.0, hits=0.5)
    measured = engine.serve(60, turnover=10.0, hits=0.2)
    assert measured.hit_ratio_before == pytest.approx(0.5)
    assert not measured.by_siblings


def test_replicas_that_find_more_although_their_cache_lives_no_longer_are_reported_and_are_no_eviction():
    model = Octaves()
    Engine(model).serve(120, turnover=10.0, hits=0.8)
    measured = Engine(model).serve(90, turnover=200.0, hits=0.2)
    assert measured.hit_ratio_elsewhere == pytest.approx(0.8)
    assert measured.recomputed_ratio is None


def test_an_engine_is_no_other_replica_of_itself():
    engine = Engine(Octaves())
    engine.serve(120, turnover=10.0, hits=0.8)
    assert engine.serve(90, turnover=200.0, hits=0.2).hit_ratio_elsewhere is None


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
    named = {round(one.t) for one in found if one and one.cause is Cause.KV_CACHE_PRESSURE and one.detail == "eviction"}
    return true, named


@pytest.mark.recorded
def test_sessions_that_join_are_reported_once_the_pool_is_too_small_for_all():
    true, named = eviction_seconds(LAB / "joins-0.33.0.jsonl.xz")
    assert len(true) > 200
    assert len(named & true) >= 0.8 * len(true)
    assert all(true & set(range(t - 15, t + 16)) for t in named)


@pytest.mark.recorded
@pytest.mark.parametrize("name", ["cold", "reset", "scattered", "trace-light", "uncached", "calm-130"])
def test_what_is_no_eviction_is_never_reported(name):
    _, named = eviction_seconds(LAB / f"{name}-0.33.0.jsonl.xz")
    assert named == set()


def lasting(*shares: float | None, recomputed: float = 0.5) -> list[float | None]:
    """What a verdict is made of, of these shares of the time, a second apart."""
    harm = LastingHarm()
    found = [Eviction(recomputed_ratio=recomputed, time_ratio=share, turnovers=1.0) for share in shares]
    return [harm.take(float(t), one, THRESHOLDS).lasting_time_ratio for t, one in enumerate(found)]


def test_harm_counts_once_it_lasts_and_for_a_while_after():
    stays, lasts = round(THRESHOLDS.eviction.stays_seconds), round(LASTING_SECONDS)
    found = lasting(*[0.1] * lasts, *[0.4] * lasts, *[0.1] * (stays + 2))
    assert found[2 * lasts - 2] == 0.1
    assert found[2 * lasts - 1] == found[2 * lasts - 1 + stays] == 0.4
    assert found[2 * lasts + stays] == 0.1


def test_harm_of_before_the_clock_was_set_back_is_forgotten():
    past = EngineHistory(60, 600)
    past._harm.take(1_000.0, Eviction(recomputed_ratio=0.5, time_ratio=0.4, turnovers=1.0), THRESHOLDS)
    past.begin_anew()
    assert past._harm.take(1.0, Eviction(), THRESHOLDS).lasting_time_ratio is None


def test_a_mean_of_the_last_seconds_has_lasted_already():
    """Where each miss is read and a prompt token's time is known."""
    harm = LastingHarm()
    calm = Eviction(recomputed_ratio=0.1, time_ratio=0.02, newest=((0.1, 0.02),), turnovers=1.0)
    for t in range(8):
        harm.take(float(t), calm, THRESHOLDS)
    found = replace(calm, newest=((0.4, 0.1), (0.4, 0.25), (0.1, 0.9)))
    assert harm.take(8.0, found, THRESHOLDS).lasting_time_ratio == 0.25
    cold = replace(calm, newest=((THRESHOLDS.eviction.recomputed_min_ratio / 2, 0.25),))
    assert LastingHarm().take(0.0, cold, THRESHOLDS).lasting_time_ratio == 0.0


def test_a_single_prompt_is_no_lasting_harm():
    assert max(share or 0.0 for share in lasting(*[0.1] * 8, 0.9, 0.9, 0.1, 0.1)) == 0.1


def test_what_is_not_known_neither_ends_harm_nor_prolongs_it():
    stays = round(THRESHOLDS.eviction.stays_seconds)
    found = lasting(0.4, 0.4, 0.4, *[None] * (stays + 2))
    assert found[2 + stays] == 0.4
    assert found[3 + stays] is None
    assert lasting(None, None) == [None, None]


def test_time_that_goes_into_new_prompts_is_no_harm():
    assert lasting(0.9, 0.9, 0.9, 0.9, recomputed=THRESHOLDS.eviction.recomputed_min_ratio / 2)[-1] == 0.0


def test_another_process_starts_without_the_harm_of_the_one_before():
    harm, found = LastingHarm(), Eviction(recomputed_ratio=0.5, time_ratio=0.4, turnovers=1.0)
    assert harm.take(1.0, found, THRESHOLDS).lasting_time_ratio == 0.4
    harm.restarted()
    assert harm.take(2.0, Eviction(), THRESHOLDS).lasting_time_ratio is None
