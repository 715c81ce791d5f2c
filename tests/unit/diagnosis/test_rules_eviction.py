"""Contexts that are evicted and computed again: beside requests that wait, in waves, and how sure that is."""

from dataclasses import replace
from itertools import pairwise

import pytest

from kvpressure.diagnosis.diagnose import Diagnostician
from kvpressure.diagnosis.facts import Inputs
from kvpressure.model.verdict import Cause, Stage
from kvpressure.signals.eviction import Eviction
from kvpressure.signals.waiting import Deferral
from tests.support.verdicts import THRESHOLDS, grounds, inputs

EVICTED = Eviction(
    turnover_seconds=9.0,
    hit_ratio=0.2,
    hit_ratio_before=0.8,
    recomputed_ratio=0.75,
    time_ratio=0.4,
    lasting_time_ratio=0.4,
    turnovers=3.0,
)
NOBODY_WAITS = {"waiting": 0.0, "waiting_ratio": 0.0, "demand": 4.0, "kv_usage_ratio": 0.4}
BLOCKED = {"kv_usage_ratio": 0.9, "blocked_ratio": 1.0}


def evicting(share: float = 0.4, recomputed: float = 0.75, **given: object) -> Inputs:
    """Polls that show what is `given`, and evictions that take a `share` of the time."""
    found = inputs(**(given or NOBODY_WAITS))
    eviction = replace(EVICTED, time_ratio=share, lasting_time_ratio=share, recomputed_ratio=recomputed)
    return replace(found, window=replace(found.window, eviction=eviction))


def test_where_nobody_waits_eviction_is_the_detail():
    detail, said = grounds(evicting())
    assert detail == "eviction"
    assert "turns over every 9" in said
    assert "75% of the prompt tokens computed" in said
    assert "40% of the time" in said


def test_what_kv_events_show_is_said_with_larger_pools_and_how_sure_it_is():
    found = evicting()
    shown = replace(EVICTED, by_events=True, error_ratio=0.05, hit_ratio_by_pool={1.5: 0.5, 2.0: 0.6})
    assert grounds(replace(found, window=replace(found.window, eviction=shown)))[1] == (
        "The cache turns over every 9 s. Prefix hits are 20%, and would have been 50% with 1.5 times the pool, 60% "
        "with 2 times the pool. 75% of the prompt tokens computed (give or take 5% of that) had been evicted, which "
        "takes 40% of the time (evidence: KV events)."
    )
    alone = replace(shown, turnover_seconds=None, hit_ratio=None, error_ratio=0.0)
    assert grounds(replace(found, window=replace(found.window, eviction=alone)))[1].startswith("75% of the prompt")


def test_beside_requests_that_do_not_fit_both_are_said():
    detail, said = grounds(evicting(**BLOCKED))
    assert detail == "admission"
    assert "did not fit" in said
    assert "Contexts are evicted too: The cache turns over every 9" in said


def test_of_those_that_do_not_fit_alone_nothing_more_is_said():
    assert "evicted" not in grounds(evicting(share=0.1, **BLOCKED))[1]


def test_eviction_is_reported_at_once_for_what_it_takes_has_lasted_and_another_cause_is_not():
    diagnostician = Diagnostician()
    diagnostician.diagnose(0.0, inputs(**NOBODY_WAITS))
    assert diagnostician.diagnose(60.0, inputs(**BLOCKED, waiting=5.0, waiting_ratio=1.0, demand=9.0)).cause is (
        Cause.HEALTHY
    )
    assert diagnostician.diagnose(61.0, inputs(**NOBODY_WAITS)).cause is Cause.HEALTHY
    assert diagnostician.diagnose(62.0, evicting()).cause is Cause.KV_CACHE_PRESSURE


def test_eviction_does_not_wait_for_the_cause_before_to_have_stayed():
    diagnostician, blocked = Diagnostician(), inputs(**BLOCKED, waiting=5.0, waiting_ratio=1.0, demand=9.0)
    diagnostician.diagnose(0.0, blocked)
    hold = round(THRESHOLDS.verdict.cause_hold_seconds)
    for t in range(60, 60 + hold + 1):
        found = diagnostician.diagnose(float(t), inputs(**NOBODY_WAITS))
    assert found.cause is Cause.HEALTHY
    assert diagnostician.diagnose(61.0 + hold, evicting()).detail == "eviction"


@pytest.mark.parametrize(("share", "stage"), [(0.4, Stage.BUILDING), (0.7, Stage.COLLAPSED)])
def test_the_stage_is_how_much_time_it_takes(share: float, stage: Stage):
    found = Diagnostician().diagnose(1.0, evicting(share))
    assert (found.cause, found.stage) == (Cause.KV_CACHE_PRESSURE, stage)


def test_confidence_follows_what_is_evicted_without_a_step():
    judge, t, sure = Diagnostician(), 0.0, []
    for share in (0.4, 0.25, 0.19, 0.15, 0.11, 0.1, 0.08, 0.06):
        t += 1.0
        sure.append(judge.diagnose(t, evicting(share)).confidence)
    assert sure[0] == sure[4] > 0.8
    assert max(abs(a - b) for a, b in pairwise(sure)) < 0.2


def test_what_is_computed_again_now_and_then_is_less_sure():
    least = THRESHOLDS.eviction.recomputed_min_ratio
    judge = Diagnostician()
    judge.diagnose(1.0, evicting())
    assert judge.diagnose(2.0, evicting(recomputed=least / 2)).confidence < judge.diagnose(3.0, evicting()).confidence


PROMPTS = {"demand": 0.2, "waiting": 0.0, "waiting_ratio": 0.0}
PROMPTS |= {"step_tokens": 3000.0, "prefill_ratio": 1.0, "prefilling": 2.8}


def computing(eviction: Eviction) -> Inputs:
    """Polls of steps full of prompts, and what is known of evictions."""
    found = inputs(**PROMPTS)
    return replace(found, window=replace(found.window, eviction=eviction))


def test_where_nothing_tells_what_was_here_before_eviction_is_no_verdict_and_what_would_tell_is_named():
    found = Diagnostician().diagnose(1.0, computing(Eviction(turnover_seconds=9.0, hit_ratio=0.1)))
    assert (found.cause, found.detail) == (Cause.COMPUTE_BOUND, "prefill")
    assert "which blocks were evicted and computed again" in [one.what for one in found.missing]


def test_a_calm_verdict_names_kv_events_alone_of_other_sources_and_only_where_prompts_may_be_evicted():
    def missing(share: float) -> list[str]:
        found = inputs(**NOBODY_WAITS, prefilling=share)
        eviction = Eviction(turnover_seconds=9.0, hit_ratio=0.1)
        said = Diagnostician().diagnose(1.0, replace(found, window=replace(found.window, eviction=eviction)))
        assert said.cause is Cause.HEALTHY
        return [one.what for one in said.missing]

    assert "which blocks were evicted and computed again" in missing(THRESHOLDS.eviction.time_min_ratio)
    assert "how busy its GPUs are" not in missing(THRESHOLDS.eviction.time_min_ratio)
    assert "which blocks were evicted and computed again" not in missing(THRESHOLDS.eviction.time_min_ratio / 2)


def test_a_past_that_shows_no_eviction_leaves_nothing_to_ask():
    known = Eviction(turnover_seconds=9.0, hit_ratio=0.1, hit_ratio_before=0.1, recomputed_ratio=0.0, time_ratio=0.0)
    known = replace(known, lasting_time_ratio=0.0)
    found = Diagnostician().diagnose(1.0, computing(known))
    assert "which blocks were evicted and computed again" not in [one.what for one in found.missing]


def test_sessions_that_other_replicas_find_are_named_as_routing():
    eviction = Eviction(turnover_seconds=300.0, hit_ratio=0.1, hit_ratio_elsewhere=0.8)
    found = Diagnostician().diagnose(1.0, computing(eviction))
    assert found.cause is Cause.COMPUTE_BOUND
    assert "80% at other replicas" in found.grounds
    assert "routing" in found.grounds
    little = Diagnostician().diagnose(1.0, computing(replace(eviction, hit_ratio_elsewhere=0.11)))
    assert "replicas" not in little.grounds


def test_what_an_offload_tier_has_of_it_is_said_and_what_it_had_no_room_for():
    def said(tier: Deferral) -> str:
        made = evicting()
        return grounds(replace(made, window=replace(made.window, deferral=tier)))[1]

    tier = Deferral(connector=True, offload=True, brought_ratio=0.12, dropped_stores=340.0)
    assert "The offload tier had 12% of what the pool lacked. 340 stores into it were dropped" in said(tier)
    assert "offload tier" not in said(replace(tier, remote=True)), "which of the two brings it is not known"
