from dataclasses import replace

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.action import DRAIN_MAX_SECONDS, drain_text
from kvpressure.simulation.config_changes import cap_prompt, replicas, sequences
from kvpressure.simulation.consequences import Figures, Model
from kvpressure.simulation.models import model_of
from tests.support.observed import given, pressed_view

pytestmark = pytest.mark.recorded

THRESHOLDS = load_thresholds()
COLLAPSE = "lab/kv-collapse-0.33.0.jsonl.xz"


def collapse() -> Model:
    return model_of(given(COLLAPSE))


def figures(model: Model, *config_changes: object) -> Figures:
    return model.figures(config_changes)  # type: ignore[arg-type]


def overloaded() -> Model:
    """Two requests a second more come than end, at an even pace."""
    intervals = pressed_view(COLLAPSE).observed.intervals
    ended = sum(polled.finished or 0.0 for polled in intervals) / len(intervals)
    grows = tuple(
        replace(polled, waiting=10.0 + 2.0 * number, finished=ended) for number, polled in enumerate(intervals)
    )
    return model_of(given(COLLAPSE, intervals=grows, minutes=None))


def test_an_overload_says_what_comes_what_is_served_and_when_the_queue_is():
    model = overloaded()
    arriving, served = model.arriving_per_second(), model.served_per_second()
    assert model.queue_grows
    assert arriving - served == pytest.approx(2.0, rel=0.1)
    two, many = replicas(2), replicas(60)
    assert model.served_per_second([two]) == pytest.approx(2 * served, rel=0.25)
    assert model.drain_seconds([two]) == DRAIN_MAX_SECONDS
    assert drain_text(DRAIN_MAX_SECONDS) == "the queue is not served within 30 min"
    assert collapse().drain_seconds([two]) is None
    spare = model.served_per_second([many]) - arriving
    assert model.drain_seconds([many]) == pytest.approx(model.known.measured.waiting / spare)
    assert not collapse().queue_grows


def test_steps_shorter_than_simulated_widen_the_range_upwards():
    """Where some of the requests that run get no token, the others may be faster than what was simulated."""
    intervals = pressed_view(COLLAPSE).observed.intervals
    held_up = tuple(replace(polled, steps=(polled.steps or 0.0) * 1.25) for polled in intervals)
    held = model_of(given(COLLAPSE, intervals=held_up))
    usual, wider = (figures(one, replicas(2)).tokens_per_second for one in (collapse(), held))
    assert wider.high / wider.value > 1.08 * usual.high / usual.value
    assert wider.low / wider.value == pytest.approx(usual.low / usual.value, rel=0.05)


def test_without_a_range_no_other_engine_is_simulated(monkeypatch: pytest.MonkeyPatch):
    model = collapse()
    monkeypatch.setattr(Model, "_alternatives", lambda *_: pytest.fail("other engines are simulated"))
    found = model.expected([], [sequences(2)], ranged=False)
    assert found.tokens_per_second.low == found.tokens_per_second.after == found.tokens_per_second.high


def test_a_cap_inside_a_bucket_refuses_all_of_it_or_none():
    model = collapse()
    (bucket, *_) = (one for one in model.known.prompts.buckets if one.share > 0.5)
    refused = figures(model, cap_prompt(round((bucket.low + bucket.high) / 2))).refused_ratio
    assert refused.low <= refused.value <= refused.high
    assert refused.high - refused.low > 0.5


def test_a_cap_inside_a_bucket_with_most_prompts_is_a_question_not_a_number():
    model = collapse()
    (bucket, *_) = (one for one in model.known.prompts.buckets if one.share > 0.5)
    expected = model.expected([], [cap_prompt(round((bucket.low + bucket.high) / 2))])
    assert f"{bucket.low:,.0f} to {bucket.high:,.0f} tokens" in expected.doubt
    assert expected.text.startswith("cannot be predicted from this page: ")


def test_a_range_that_says_nothing_names_what_leaves_it_open():
    strict = model_of(given(COLLAPSE, thresholds=THRESHOLDS.with_values(advice_range_max_factor=1.0)))
    assert figures(strict, replicas(2)).doubt
    assert not figures(collapse(), replicas(2)).doubt


def test_a_limit_that_is_given_is_what_answers_are_in_time_by():
    strict, easy = (model_of(given(COLLAPSE), limit_seconds=seconds) for seconds in (1.0, 1000.0))
    assert figures(strict).goodput.value == 0
    assert figures(easy).goodput.value > 0
    assert strict.limit_seconds == 1.0
