"""Windows for samples 15 to 60 s apart hold as many polls as a verdict takes, and nothing that means "bad" moves."""

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import PipelineSettings
from kvpressure.engine_state.pace import paced

LIMITS = load_thresholds()
OF_THE_PACE = {
    "cause_hold_seconds",
    "preempting_min_burst_count",
    "verdict_window_seconds",
    "verdict_min_poll_count",
}


@pytest.mark.parametrize("step", [15.0, 20.0, 30.0, 45.0, 60.0])
def test_a_verdict_has_its_polls_with_one_scrape_lost(step: float) -> None:
    settings, limits = paced(step, LIMITS)
    polls = int(limits.verdict.verdict_window_seconds / step) + 1
    assert polls - 1 >= 4
    assert limits.verdict.verdict_min_poll_count <= polls
    assert settings.window_seconds / step >= 10, "a prediction takes ten intervals"
    assert settings.long_window_seconds >= settings.window_seconds
    assert settings.longest_interval_seconds > 2 * step, "one scrape may be lost"


@pytest.mark.parametrize("step", [15.0, 30.0, 60.0])
def test_what_means_bad_stays(step: float) -> None:
    _, limits = paced(step, LIMITS)
    moved = {name for name, value in limits.values.items() if value != LIMITS.values[name]}
    assert moved <= OF_THE_PACE


def test_at_the_exporters_own_pace_next_to_nothing_changes() -> None:
    settings, limits = paced(1.0, LIMITS)
    assert settings == PipelineSettings()
    assert limits.verdict.verdict_window_seconds == LIMITS.verdict.verdict_window_seconds


def test_where_a_poll_speaks_of_half_a_minute_it_counts_at_once_and_a_preemption_needs_company() -> None:
    (_, often), (_, seldom) = paced(15.0, LIMITS), paced(30.0, LIMITS)
    assert (often.verdict.cause_hold_seconds, seldom.verdict.cause_hold_seconds) == (
        LIMITS.verdict.cause_hold_seconds,
        0.0,
    )
    assert seldom.symptoms.preempting_min_burst_count == often.symptoms.preempting_min_burst_count + 1
