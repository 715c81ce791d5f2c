import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.limits import Limits
from kvpressure.model.samples import EngineSample
from kvpressure.model.view import Interval
from kvpressure.signals.observed import observed
from kvpressure.signals.windows import EngineWindow
from kvpressure.simulation.calibrate import Given
from kvpressure.simulation.config_changes import replicas
from kvpressure.simulation.models import model_of
from tests.support.tools import FIXTURES
from tests.support.verdicts import views

RECORDED = FIXTURES / "cold" / "aliased-collapse.jsonl.xz"
DONE = 2_811.0
"""Tokens/s of two such servers with half of the clients each, measured after the recording."""


def intervals(running: float, each: float, **growth: float) -> tuple[Interval, ...]:
    """Ten polls that find so many requests, while a step gives `each` tokens; `growth` is that of other counters."""
    window = EngineWindow(seconds=60, long_window_seconds=600)
    for number in range(11):
        counters = {"steps": 100.0 * number, "generation_tokens": each * 100.0 * number}
        more = {name: value * number for name, value in growth.items()}
        window.add(
            float(number),
            EngineSample("m", "0", {"running": running, "waiting": 9.0, "kv_usage": 0.4}, counters | more),
        )
    return observed(window, {}).intervals


def test_where_polls_meet_a_smaller_batch_than_the_steps_have_it_is_that_of_the_steps():
    assert {(one.running, one.usage_ratio) for one in intervals(1.0, 2.0)} == {(2.0, None)}


def test_what_polls_show_stays_where_the_steps_have_as_many_or_fewer():
    # Of requests that run some have their prompts computed, and give no token.
    for each in (0.5, 1.0, 1.1):
        assert {(one.running, one.usage_ratio) for one in intervals(1.0, each)} == {(1.0, 0.4)}


def test_accepted_drafts_are_not_more_sequences():
    found = intervals(1.0, 2.0, accepted_draft_tokens=100.0)
    assert {(one.running, one.usage_ratio) for one in found} == {(1.0, 0.4)}


def test_where_steps_of_prompts_and_of_answers_are_counted_apart_polls_stay_as_they_are():
    assert {one.running for one in intervals(1.0, 2.0, decode_steps=50.0)} == {1.0}


@pytest.mark.recorded
def test_half_a_minute_of_a_server_that_answers_polls_only_between_two_requests_predicts_what_came():
    view = views(RECORDED)[-1]
    assert view.observed is not None
    model = model_of(Given(view.observed, Limits(), load_thresholds()))
    assert model.known.measured.running == pytest.approx(2.0, abs=0.05)
    expected = model.expected([], [replicas(2)])
    assert expected.tokens_per_second.after == pytest.approx(DONE, rel=0.15)
