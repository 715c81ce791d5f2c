from dataclasses import replace
from functools import cache

import pytest

from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import PipelineSettings
from kvpressure.engines.recordings import TraceError
from kvpressure.model.limits import Limits
from kvpressure.model.samples import HistogramSample
from kvpressure.model.view import Minutes, Observed, PoolHits
from kvpressure.simulation.calibrate_sessions import deviation, known_sessions, shared_tokens
from kvpressure.simulation.hits import best_hit_ratio, has_sessions
from kvpressure.simulation.lengths import lengths
from kvpressure.simulation.page import read
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.steps import UnknownError
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.recorded

THRESHOLDS = load_thresholds()
CURVE = tuple(
    PoolHits(factor, ratio) for factor, ratio in ((1.25, 0.135), (1.5, 0.263), (2.0, 0.689), (3.0, 0.912), (8.0, 0.912))
)
"""Of `workingset-joins`, by every use of every block, without sampling."""
LAB = {1.0: (0.087, 52.4, 1.92), 1.5: (0.271, 53.8, 1.30), 2.0: (0.677, 55.8, 0.49), 3.0: (0.913, 56.4, 0.16)}
"""Hits, tokens/s and mean TTFT of the lab's runs of it on so many times its pool (bench/advice/eviction.py)."""


@cache
def shown(name: str) -> tuple[Observed, Limits]:
    """What is known of the lab's engine at the end of a recording."""
    settings, view = PipelineSettings(always_observed=True), None
    for item in Replay(ReplayTarget("lab"), THRESHOLDS, settings).views(FIXTURES / "lab" / "workingset" / name):
        if not isinstance(item, TraceError):
            view = item[1][0]
    return view.observed, view.limits


def joined() -> tuple[Observed, Limits]:
    return shown("joins-0.33.0.jsonl.xz")


@pytest.mark.parametrize("least", [1.0, 1.25])
def test_what_all_prompts_share_is_what_needs_no_capacity_where_no_smaller_pool_is_measured(least):
    """As KV events have it: some of today's hits are of contexts that were kept; of smaller pools nothing is known."""
    observed, limits = joined()
    curve = tuple(PoolHits(one.factor, one.ratio) for one in CURVE if one.factor >= least)
    kept = (PoolHits(1.0, 0.3), *curve[1:]) if least == 1.0 else curve
    found = known_sessions(replace(observed, hits_by_pool=curve), limits, THRESHOLDS)
    assert found.demand.sessions.shared == pytest.approx(1_500, rel=0.15)
    page = read(replace(observed, hits_by_pool=kept), limits, even=True)
    assert shared_tokens(page) == pytest.approx(1_500, rel=0.15)


def test_with_the_hits_by_pool_sessions_are_found_as_the_lab_has_them():
    """36 clients that think 50 to 150 s; 15 turns of 1,350 words on average, after a common prefix of 1,500 tokens."""
    observed, limits = joined()
    found = known_sessions(replace(observed, hits_by_pool=CURVE), limits, THRESHOLDS)
    sessions = found.demand.sessions
    assert found.demand.clients == pytest.approx(36, rel=0.15)
    assert sessions.think_seconds == pytest.approx(91, rel=0.2)
    assert sessions.mean_turns == pytest.approx(15, abs=3)
    assert sessions.shared == pytest.approx(1_500, rel=0.1)
    assert found.server.steps.prompt_token == pytest.approx(1 / 16_000, rel=0.2)


@pytest.mark.parametrize(("factor", "lab"), LAB.items())
def test_a_larger_pool_does_what_it_did_in_the_lab(factor, lab):
    observed, limits = joined()
    found = known_sessions(replace(observed, hits_by_pool=CURVE), limits, THRESHOLDS)
    outcome = simulate(replace(found.server, pool_tokens=factor * found.server.pool_tokens), found.demand)
    assert outcome.hit_ratio == pytest.approx(lab[0], abs=0.1)
    assert outcome.tokens_per_second == pytest.approx(lab[1], rel=0.15)
    assert outcome.first_token_seconds == pytest.approx(lab[2], rel=0.4, abs=0.1)


def test_from_the_page_alone_hits_in_the_middle_of_the_cliff_tell_how_many_there_are():
    """As if this engine's page had shown what it finds on twice its pool."""
    observed, limits = joined()
    assert observed.minutes is not None
    middle = replace(observed, minutes=replace(observed.minutes, hit_ratio=0.4))
    found = known_sessions(middle, limits, THRESHOLDS)
    outcome = simulate(found.server, found.demand)
    assert outcome.hit_ratio == pytest.approx(0.4, abs=0.1)
    assert found.demand.sessions is not None


def test_what_the_page_cannot_tell_is_said():
    observed, limits = joined()
    assert observed.minutes is not None
    low = replace(observed, minutes=replace(observed.minutes, hit_ratio=0.09))
    short = HistogramSample((1.0,), (0.0,), 0.0)
    for broken, why in (
        (low, "evicted before any of them is asked for again"),
        (replace(observed, hit_ratio_before=None), "never had a cache that turned over slowly enough"),
        (replace(observed, turnover_before_factor=3.0), "never had a cache that turned over slowly enough"),
        (replace(observed, minutes=None), "not for long enough"),
        (replace(observed, outputs=short), "lengths are not known"),
        (None, "traffic"),
    ):
        with pytest.raises(UnknownError, match=why):
            known_sessions(broken, limits, THRESHOLDS)


def test_an_engine_that_never_found_more_says_so():
    observed, limits = shown("busy-040-0.33.0.jsonl.xz")
    with pytest.raises(UnknownError, match="KV events would"):
        known_sessions(observed, limits, THRESHOLDS)


def test_sessions_are_looked_for_where_much_more_was_found_before():
    observed, _ = joined()
    assert has_sessions(observed, THRESHOLDS)
    assert not has_sessions(None, THRESHOLDS)
    assert not has_sessions(replace(observed, hit_ratio_before=None), THRESHOLDS)
    assert not has_sessions(replace(observed, minutes=Minutes(300.0, 1.0, 0.0, 50.0, 0.92)), THRESHOLDS)
    assert has_sessions(replace(observed, hit_ratio_before=None, hits_by_pool=CURVE), THRESHOLDS)


def test_what_was_found_before_counts_where_events_do_not_reach_as_far():
    observed, limits = joined()
    near = replace(observed, hits_by_pool=CURVE[:2])
    assert best_hit_ratio(near) == observed.hit_ratio_before
    assert best_hit_ratio(replace(near, hit_ratio_before=None)) == CURVE[1].ratio
    found = known_sessions(near, limits, THRESHOLDS)
    # Of two pools that find hardly anything, longer think times and more sessions do nearly as well.
    assert found.demand.clients == pytest.approx(36, rel=0.25)


def test_the_deviation_of_an_even_distribution_is_its_width_over_the_root_of_twelve():
    found = lengths(HistogramSample((100.0, 200.0, float("inf")), (0.0, 10.0, 10.0), 1500.0), None)
    assert found is not None
    assert deviation(found) == pytest.approx(100 / 12**0.5)
