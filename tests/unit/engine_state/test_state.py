"""One engine from poll to poll: what a poll takes in, what a gap ends, and whose limits hold."""

from __future__ import annotations

from kvpressure.config.target import container_of
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state.state import EngineEnvironment, EngineState, PipelineSettings
from kvpressure.model.environment import DeclaredLimit, Environment, LogReport
from kvpressure.model.limits import DECLARED, Limit
from kvpressure.model.samples import EnginePage, EngineSample
from tests.support.snapshots import FakeTarget

SETTINGS = PipelineSettings()
TARGET = FakeTarget()


def poll(state: EngineState, t: float, environment: EngineEnvironment | None = None) -> object:
    sample = EngineSample("m", "0", {"running": 1.0, "waiting": 0.0, "kv_usage": 0.5}, {"steps": t})
    return state.step(
        EnginePage(t, (sample,)), sample, environment or EngineEnvironment(TARGET, Environment()), SETTINGS
    )


def test_a_poll_gives_a_view_and_the_same_one_again_gives_none():
    state = EngineState(SETTINGS, load_thresholds())
    assert poll(state, 100.0) is state.view is not None
    before = state.view
    assert poll(state, 100.0) is None
    assert (state.view, state.t) == (before, 100.0)


def test_a_gap_ends_the_window_and_not_what_is_healthy():
    state = EngineState(SETTINGS, load_thresholds())
    poll(state, 100.0)
    poll(state, 101.0)
    window, baseline = state.past.window, state.past.baseline
    poll(state, 101.0 + SETTINGS.window_seconds)
    assert state.past.window is window
    poll(state, 102.0 + 2 * SETTINGS.window_seconds)
    assert (state.past.window is window, state.past.baseline is baseline) == (False, True)
    assert len(state.past.window.points) == 1


def test_what_log_and_start_tell_of_the_cache_is_that_of_its_environment():
    state = EngineState(SETTINGS, load_thresholds())
    poll(state, 100.0)
    assert state.view is not None
    assert "kv_capacity_tokens" not in state.view.derived
    log = LogReport(container_of(TARGET), 100.0, {}, kv_capacity_tokens=8160.0)
    environment = Environment(logs={container_of(TARGET): log})
    poll(state, 101.0, EngineEnvironment(TARGET, environment, (DeclaredLimit("max_num_seqs", 7.0, "its start"),)))
    assert state.view.derived["kv_capacity_tokens"] == 8160
    assert state.view.limits.max_num_seqs == Limit(7.0, DECLARED)
