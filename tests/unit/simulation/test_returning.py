"""An engine whose prompts may come back, where its page does not tell: what more memory would give is left open."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.view import Observed
from kvpressure.simulation.calibrate import Given, known
from kvpressure.simulation.config_changes import applied, kv_in_8_bits, replicas, route_by_length, watermark
from kvpressure.simulation.models import model_of
from kvpressure.simulation.returning import Returning, returning
from tests.support.observed import pressed_view

pytestmark = pytest.mark.recorded

THRESHOLDS = load_thresholds()
VIEW = "lab/workingset/busy-040-0.33.0.jsonl.xz"
"""Sessions of which the cache finds what all share: 9 % of the prompts."""


def seen() -> Observed:
    observed = pressed_view(VIEW).observed
    assert observed is not None
    return observed


def found(observed: Observed) -> Returning | None:
    limits = pressed_view(VIEW).limits
    return returning(known(Given(observed, limits, THRESHOLDS)), observed, limits)


def test_more_memory_may_give_far_more_where_prompts_may_come_back():
    observed, limits = seen(), pressed_view(VIEW).limits
    uncached = replace(observed, cache=replace(observed.cache, prefix_caching=False))
    for change, opens in ((kv_in_8_bits(), True), (watermark(0.0), False)):
        ranges = [model_of(Given(one, limits, THRESHOLDS)).expected([], [change]) for one in (observed, uncached)]
        highs = [one.tokens_per_second.high / one.tokens_per_second.before for one in ranges if one is not None]
        assert (highs[0] > 1.02 * highs[1]) is opens, (change.key, highs)


def test_the_number_lies_in_the_middle_between_prompts_that_are_new_and_prompts_that_come_back():
    model = model_of(Given(seen(), pressed_view(VIEW).limits, THRESHOLDS))
    state, changes = applied(model.state, [kv_in_8_bits()]), [kv_in_8_bits()]
    now, then, there, expected = (
        model.outcome(model.state),
        model.outcome(state),
        found(seen()),
        model.expected([], changes),
    )
    assert now is not None
    back = there.beside(now, then, changes)
    assert back.tokens_per_second > 1.02 * then.tokens_per_second
    middle = math.sqrt(back.tokens_per_second * then.tokens_per_second)
    assert expected.tokens_per_second.after == pytest.approx(model.tokens_factor * middle)
    assert expected.tokens_per_second.low < model.tokens_factor * then.tokens_per_second
    assert expected.tokens_per_second.high > model.tokens_factor * back.tokens_per_second


def test_what_the_range_holds_of_sessions_is_printed():
    uncached = replace(seen(), cached_ratio=None)
    wide, texts = THRESHOLDS.with_values(advice_range_max_factor=100.0), []
    for observed in (seen(), uncached):
        expected = model_of(Given(observed, pressed_view(VIEW).limits, wide)).expected([], [replicas(2)])
        texts.append(expected.text)
    assert texts[0].endswith("; whether prompts come back, and after what pause, is not known: the range holds both")
    assert "come back" not in texts[1]


def test_where_the_range_says_nothing_for_that_it_is_named():
    strict = THRESHOLDS.with_values(advice_range_max_factor=1.2)
    expected = model_of(Given(seen(), pressed_view(VIEW).limits, strict)).expected([], [kv_in_8_bits()])
    assert "cannot be predicted from this page: " in expected.text


@pytest.mark.parametrize(
    ("changed", "open_"),
    [
        ({}, True),
        ({"cached_ratio": 0.0}, False),  # nobody shares anything
        ({"cached_ratio": None}, False),
        ({"hit_ratio_before": 0.1, "turnover_before_factor": 30.0}, False),  # with room for all no more was found
        ({"hit_ratio_before": 0.1, "turnover_before_factor": 2.0}, True),  # as full as now: it says nothing
        ({"hit_ratio_before": 0.9, "turnover_before_factor": 30.0}, True),
    ],
)
def test_a_page_speaks_for_it_by_what_is_found_and_against_it_by_what_was_found_with_room(changed, open_):
    assert (found(replace(seen(), **changed)) is not None) is open_


def test_short_and_long_prompts_apart_are_not_simulated_so():
    there = found(seen())
    model = model_of(Given(seen(), pressed_view(VIEW).limits, THRESHOLDS))
    now = model.outcome(model.state)
    assert there.beside(now, now, [route_by_length(1000, 1, 1)]) is None
    more = there.beside(now, now, [kv_in_8_bits()])
    assert more.tokens_per_second > now.tokens_per_second
    assert more.latency_p95 < now.latency_p95
