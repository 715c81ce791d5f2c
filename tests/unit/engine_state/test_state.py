"""One engine from poll to poll: what a poll takes in, what a gap ends, and whose limits hold."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kvpressure.config.target import container_of
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state.state import EngineEnvironment, EngineState, PipelineSettings
from kvpressure.model.environment import DeclaredLimit, Environment, LogReport
from kvpressure.model.kv_events import BOUNDS, KvEvents
from kvpressure.model.limits import DECLARED, Limit
from kvpressure.model.samples import CacheConfig, EnginePage, EngineSample
from kvpressure.model.view import EngineView
from tests.support.engines import histogram
from tests.support.snapshots import FakeTarget

SETTINGS = PipelineSettings()
TARGET = FakeTarget()


THRESHOLDS = load_thresholds()


def poll(state: EngineState, t: float, environment: EngineEnvironment | None = None) -> EngineView | None:
    """One more poll of an engine that generates a token and ends a request every second, each after 1.5 s."""
    gauges, counters = {"running": 1.0, "waiting": 0.0, "kv_usage": 0.5}, {"steps": t, "generation_tokens": t}
    sample = EngineSample("m", "0", gauges, counters, {"e2e": histogram((1.0, 2.0), (0.0, t, t), 1.5 * t)})
    around = environment or EngineEnvironment(TARGET, Environment())
    return state.step(EnginePage(t, (sample,)), sample, around, SETTINGS, THRESHOLDS)


def shows(view: EngineView | None) -> tuple[bool, bool]:
    """Whether it has a rate, which takes two polls of a window, and latency beside what is healthy."""
    return "tokens_per_second" in view.derived, "latency_inflation_ratio" in view.derived


def test_a_poll_gives_a_view_and_the_same_one_again_gives_none():
    state = EngineState(SETTINGS)
    assert poll(state, 100.0) is state.view is not None
    before = state.view
    assert poll(state, 100.0) is None
    assert (state.view, state.past.t) == (before, 100.0)


def test_a_gap_ends_the_window_and_not_what_is_healthy():
    state = EngineState(SETTINGS)
    poll(state, 100.0)
    poll(state, 101.0)
    for t in range(102, 300):
        view = poll(state, float(t))
    assert shows(view) == (True, True)
    assert shows(poll(state, 299.0 + SETTINGS.window_seconds)) == (True, True), "the window holds two polls still"
    later = 300.0 + 2 * SETTINGS.window_seconds
    assert shows(poll(state, later)) == (False, False)
    assert shows(poll(state, later + 1)) == (True, True), "what was healthy before the gap is still known"


def test_what_log_and_start_tell_of_the_cache_is_that_of_its_environment():
    state = EngineState(SETTINGS)
    poll(state, 100.0)
    assert "kv_capacity_tokens" not in state.view.derived
    log = LogReport(container_of(TARGET), 100.0, {}, kv_capacity_tokens=8160.0)
    environment = Environment(logs={container_of(TARGET): log})
    poll(state, 101.0, EngineEnvironment(TARGET, environment, (DeclaredLimit("max_num_seqs", 7.0, "its start"),)))
    assert state.view.derived["kv_capacity_tokens"] == 8160
    assert state.view.limits.max_num_seqs == Limit(7.0, DECLARED)


def test_hits_of_larger_pools_by_kv_events_are_what_predictions_start_from():
    """A thousand prompt tokens a second are computed, four hundred of which a tenth more pool would have kept."""
    settings = replace(SETTINGS, always_observed=True)
    state = EngineState(settings)
    cache = CacheConfig(capacity_tokens=16_000, block_size=16)
    more = next(index for index, bound in enumerate(BOUNDS) if bound >= 100)
    for t in range(120):
        counters = {"generation_tokens": 10.0 * t, "prefill_seconds": 0.5 * t, "computed_prompt_tokens": 1000.0 * t}
        counters |= {"prefix_queries": 1250.0 * t, "prefix_hits": 250.0 * t, "prompt_tokens": 1250.0 * t}
        gauges = {"running": 1.0, "waiting": 0.0, "kv_usage": 0.5}
        sample = EngineSample("m", "0", gauges, counters, {}, cache)
        missed = tuple(400.0 * t if index == more else 0.0 for index in range(len(BOUNDS) + 1))
        evicted = 100 * t
        report = KvEvents(
            float(t),
            missed_tokens=400.0 * t,
            missed_by_blocks=missed,
            reach=9000 + evicted,
            evicted_blocks=evicted,
            since=0.0,
        )
        environment = EngineEnvironment(TARGET, Environment(kv_events={TARGET.name: (report,)}))
        view = state.step(EnginePage(float(t), (sample,)), sample, environment, settings, THRESHOLDS)
    found = {one.factor: one.ratio for one in view.observed.hits_by_pool}
    assert found[2.0] == pytest.approx(0.2 + 0.8 * 0.4, abs=0.02)
    by_pool = view.derived["prefix_cache_pool_hit_ratio"]
    assert isinstance(by_pool, Mapping)
    assert found == pytest.approx({float(pool): ratio for pool, ratio in by_pool.items()})
