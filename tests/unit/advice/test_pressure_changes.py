from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from kvpressure.advice import Place, advise
from kvpressure.advice.cache import caching, tier
from kvpressure.advice.case import Case
from kvpressure.advice.edge import by_priority
from kvpressure.advice.replicas import keep_apart
from kvpressure.advice.shell import flag_words
from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.action import Action
from kvpressure.simulation.config_changes import ConfigChange, apart, offload, prefix_caching, short_first
from kvpressure.simulation.consequences import Model, model_of
from kvpressure.simulation.greedy_search import Step
from tests.support.observed import pressed_view

pytestmark = pytest.mark.recorded

THRESHOLDS = load_thresholds()
THRASH = "traces/preemption-thrash.jsonl.xz"


def case() -> Case:
    view = pressed_view(THRASH)
    assert view.diagnosis is not None
    return Case(view.diagnosis, view.derived, view.limits, Place(runtime="vllm"), THRESHOLDS, view.observed)


def model() -> Model:
    view = pressed_view(THRASH)
    return model_of(view.observed, view.limits, THRESHOLDS)


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
    assert "does not tell" in action.why


def test_a_tier_says_how_much_host_memory_and_promises_no_more_than_the_best():
    action = tier(case(), model(), step(offload(12)))
    assert action.flags == {"--kv-offloading-size": "12"}
    assert "12 GiB of host memory" in action.cost
    assert action.expected is not None
    assert "up to" in action.expected.text


def test_deployments_apart_say_how_many_serve_which():
    action = keep_apart(case(), model(), step(apart(500, 2, 1)))
    assert "prompts up to 500 on 2, longer ones on 1" in action.new
    assert "by the length" in action.cost


def told(prefixes: bool | None) -> dict[str, Action]:
    view = pressed_view(THRASH)
    assert view.observed is not None
    assert view.diagnosis is not None
    observed = replace(view.observed, cache=dataclasses.replace(view.observed.cache, prefix_caching=prefixes))
    found = advise(view.diagnosis, view.derived, view.limits, Place(runtime="vllm"), THRESHOLDS, observed=observed)
    return {action.key: action for action in found}


def test_prefix_caching_is_spoken_of_only_where_the_page_says_that_it_is_off():
    off = told(prefixes=False)
    assert "prefix_caching" in off or "prefix caching" in off["would_not_help"].why
    for other in (True, None):
        found = told(other)
        assert "prefix_caching" not in found
        assert "prefix caching" not in found["would_not_help"].why
