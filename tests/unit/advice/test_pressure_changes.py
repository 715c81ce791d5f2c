from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kvpressure.advice.advise import advise_on
from kvpressure.advice.cache import caching, tier
from kvpressure.advice.case import Case
from kvpressure.advice.edge import by_priority
from kvpressure.advice.forecast import Forecast, as_shown, without_gpu, without_restart
from kvpressure.advice.replicas import keep_apart
from kvpressure.advice.shell import flag_words
from kvpressure.model.action import NOW, Action, Expected, Shift
from kvpressure.model.values import Derived
from kvpressure.model.view import Unfinished
from kvpressure.simulation.calibrate import Given
from kvpressure.simulation.config_changes import (
    ConfigChange,
    caps,
    kv_in_8_bits,
    offload,
    prefix_caching,
    replicas,
    route_by_length,
    sequences,
    short_first,
)
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import Choice, Step
from kvpressure.simulation.models import model_of
from tests.support.advice_cases import THRESHOLDS, advised, case_of
from tests.support.observed import given, pressed_view

pytestmark = pytest.mark.recorded

THRASH = "traces/preemption-thrash.jsonl.xz"


def case() -> Case:
    return case_of(pressed_view(THRASH))


def model() -> Model:
    return model_of(given(THRASH))


def step(change: ConfigChange) -> Step:
    expected = model().expected([], [change])
    assert expected is not None
    return Step(change, expected)


def test_priorities_are_a_flag_and_a_number_that_clients_send():
    action = by_priority(case(), model(), step(short_first(500)))
    assert action.flags == {"--scheduling-policy": "priority"}
    assert '"priority": 1' in action.commands[0]
    assert "longer than" not in action.new
    assert "may not be answered" in action.cost


def test_prefix_caching_is_a_switch_without_a_value():
    action = caching(case(), model(), step(prefix_caching()))
    assert flag_words(action.flags) == ["--enable-prefix-caching"]
    assert "does not say" in action.why


def test_a_tier_says_how_much_host_memory_and_promises_no_more_than_the_best():
    action = tier(case(), model(), step(offload(12)))
    assert action.flags == {"--kv-offloading-size": "12"}
    assert "12 GiB of host memory" in action.cost
    assert "up to" in action.expected.text


def test_deployments_apart_say_how_many_serve_which():
    action = keep_apart(case(), model(), step(route_by_length(500, 2, 1)))
    assert "prompts up to 500 on 2, longer ones on 1" in action.new
    assert "by the length" in action.cost


def told(prefixes: bool | None) -> dict[str, Action]:
    view = pressed_view(THRASH)
    cache = replace(view.observed.cache, prefix_caching=prefixes)
    return advised(view, observed=replace(view.observed, cache=cache))


def test_prefix_caching_is_spoken_of_only_where_the_page_says_that_it_is_off():
    off = told(prefixes=False)
    assert "prefix_caching" in off or "prefix caching" in off["would_not_help"].why
    for other in (True, None):
        found = told(other)
        assert "prefix_caching" not in found
        assert "prefix caching" not in found["would_not_help"].why


def same(value: float) -> Shift:
    return Shift(value, value, value, value)


EXPECTED = Expected(same(60.0), same(1.0), Shift(0.9, 0.5, 0.4, 0.6), Shift(1.9, 1.5, 1.2, 1.8), 0.0, 0.0, 10.0)


def now(tokens: float, latency: float, waiting: float) -> Derived:
    e2e = {"e2e": {"0.95": latency}}
    return {"tokens_per_second": {"generation": tokens}, "latency_seconds": e2e, "requests_waiting": waiting}


def test_less_than_a_second_is_no_rounding_error_and_a_short_queue_moves_by_as_many():
    shown = as_shown(now(60.0, 0.2, 0.95), THRESHOLDS, EXPECTED)
    assert math.isnan(shown.latency_p95.before)
    assert (shown.waiting.before, shown.waiting.after) == (0.95, pytest.approx(0.55))
    near = as_shown(now(60.0, 0.81, 0.05), THRESHOLDS, replace(EXPECTED, waiting=Shift(0.5, 0.0, 0.0, 0.2)))
    assert (near.latency_p95.before, near.latency_p95.after) == (0.81, pytest.approx(0.45))
    assert near.waiting == Shift(0.05, 0.0, 0.0, 0.0)
    assert not near.worse


def test_what_makes_it_worse_is_declined_though_what_it_makes_worse_is_not_shown():
    fewer = step(sequences(2))
    assert fewer.expected.worse
    found = Forecast(model(), Choice((fewer,))).printed(replace(case(), derived={}))
    assert not found.steps
    (told,) = found.declined
    assert told.change.key == "max_num_seqs"
    assert "fewer tokens" in told.against
    assert "nan" not in told.expected.text


def test_what_helps_alone_is_advised_where_what_it_gains_nothing_beside_is_not():
    small, fewer = step(kv_in_8_bits()), step(sequences(2))
    found = Forecast(model(), Choice((fewer,), (small,))).printed(case())
    assert [one.change.key for one in found.steps] == ["kv_cache_dtype"]
    assert [one.change.key for one in found.declined] == ["max_num_seqs"]
    beside = Forecast(model(), Choice((step(replicas(2)),), (small,))).printed(case())
    assert beside.declined[0].against == "gains nothing beside the steps that are advised"


def test_what_was_not_measured_is_not_in_the_words_of_an_expectation():
    unknown = as_shown({}, THRESHOLDS, EXPECTED)
    assert unknown.text == ""
    assert replace(unknown, at_best=True).text == ""
    known_queue = replace(unknown, waiting=EXPECTED.waiting)
    assert known_queue.text == "waiting 1.9 -> 1.5"
    assert replace(known_queue, servers=3).text == "on all 3: waiting 1.9 -> 1.5"
    assert replace(known_queue, servers=2).text == "on both: waiting 1.9 -> 1.5"


def test_a_verdict_that_the_evidence_does_not_bear_out_changes_nothing():
    unsure = replace(case(), diagnosis=replace(case().diagnosis, confidence=0.0))
    assert [(one.key, one.when, one.commands != ()) for one in advise_on(unsure)] == [("look_longer", "now", True)]


def test_of_two_steps_without_a_restart_the_one_that_gains_most_is_first():
    view = pressed_view("traces/ramp-into-pressure.jsonl.xz")
    lasting = replace(view.diagnosis, since=view.diagnosis.t - 60)
    small = THRESHOLDS.with_values(advice_gain_min_ratio=0.02)  # by itself the cap gains 5 % on the least sure engine
    found = advised(view, diagnosis=lasting, thresholds=small)
    now = [action for action in found.values() if action.when == NOW and action.expected is not None]
    assert [action.key for action in now] == ["add_replica", "cap_prompt"], "a cap is listed before replicas"
    gains = [action.expected.gain_ratio for action in now if action.expected is not None]
    assert gains[0] > 10 * gains[1] > 0


def test_no_step_cuts_nearly_all_answers_though_hardly_one_of_those_that_ended_was_as_long():
    view = pressed_view(THRASH)
    long = Unfinished(20 * view.observed.outputs.count, 300.0, 2500.0)
    few = tuple(replace(one, finished=0.0) for one in view.observed.intervals)
    observed = replace(view.observed, unfinished=long, intervals=few, minutes=None)
    made = model_of(Given(observed, view.limits, THRESHOLDS.with_values(advice_simulated_error_max_ratio=0.9)))
    most = THRESHOLDS.advice.refused_max_ratio
    cut = [change for change in caps(made.known, most) if change.key == "cap_output"]
    assert any(one.expected.shortened_ratio > most for one in (step_of(made, change) for change in cut))
    about = case_of(view, observed=observed)
    steps = [*without_restart(about, made).steps, *filter(None, [without_gpu(about, made)])]
    assert all(one.expected.shortened_ratio <= most for one in steps)


def step_of(made: Model, change: ConfigChange) -> Step:
    expected = made.expected([], [change], ranged=False)
    assert expected is not None
    return Step(change, expected)
