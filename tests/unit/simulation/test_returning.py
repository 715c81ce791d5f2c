"""An engine whose prompts may come back, where its page does not tell: what more memory would give is left open."""

import math
from dataclasses import replace

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.simulation.calibrate import known
from kvpressure.simulation.config_changes import applied, kv_in_8_bits, replicas, route_by_length, watermark
from kvpressure.simulation.models import model_of
from kvpressure.simulation.returning import Returning, returning
from tests.support.observed import given, pressed_view

pytestmark = pytest.mark.recorded

THRESHOLDS = load_thresholds()
VIEW = "lab/workingset/busy-040-0.33.0.jsonl.xz"
"""Sessions of which the cache finds what all share: 9 % of the prompts."""


def returned(**changed: object) -> Returning | None:
    what = given(VIEW, **changed)
    return returning(known(what), what.observed, what.limits)


def test_more_memory_may_give_far_more_where_prompts_may_come_back():
    cache = pressed_view(VIEW).observed.cache
    for change, opens in ((kv_in_8_bits(), True), (watermark(0.0), False)):
        models = [model_of(given(VIEW, cache=one)) for one in (cache, replace(cache, prefix_caching=False))]
        spans = [model.expected([], [change]).tokens_per_second for model in models]
        highs = [span.high / span.before for span in spans]
        assert (highs[0] > 1.02 * highs[1]) is opens, (change.key, highs)


def test_the_number_lies_in_the_middle_between_prompts_that_are_new_and_prompts_that_come_back():
    model, changes = model_of(given(VIEW)), [kv_in_8_bits()]
    now, then = model.outcome(model.state), model.outcome(applied(model.state, changes))
    expected = model.expected([], changes)
    assert now is not None
    back = returned().beside(now, then, changes)
    assert back.tokens_per_second > 1.02 * then.tokens_per_second
    middle = math.sqrt(back.tokens_per_second * then.tokens_per_second)
    assert expected.tokens_per_second.after == pytest.approx(model.tokens_factor * middle)
    assert expected.tokens_per_second.low < model.tokens_factor * then.tokens_per_second
    assert expected.tokens_per_second.high > model.tokens_factor * back.tokens_per_second


def test_what_the_range_holds_of_sessions_is_printed():
    wide = given(VIEW, thresholds=THRESHOLDS.with_values(advice_range_max_factor=100.0))
    uncached = replace(wide, observed=replace(wide.observed, cached_ratio=None))
    texts = [model_of(one).expected([], [replicas(2)]).text for one in (wide, uncached)]
    assert texts[0].endswith("; whether prompts come back, and after what pause, is not known: the range holds both")
    assert "come back" not in texts[1]


def test_where_the_range_says_nothing_for_that_it_is_named():
    strict = THRESHOLDS.with_values(advice_range_max_factor=1.2)
    expected = model_of(given(VIEW, thresholds=strict)).expected([], [kv_in_8_bits()])
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
    assert (returned(**changed) is not None) is open_


def test_short_and_long_prompts_apart_are_not_simulated_so():
    there, model = returned(), model_of(given(VIEW))
    now = model.outcome(model.state)
    assert there.beside(now, now, [route_by_length(1000, 1, 1)]) is None
    more = there.beside(now, now, [kv_in_8_bits()])
    assert more.tokens_per_second > now.tokens_per_second
    assert more.latency_p95 < now.latency_p95
