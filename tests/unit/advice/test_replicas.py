"""Requests to replicas that have room."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvpressure.advice.advise import Limits, Place
from kvpressure.advice.replicas import enough, replicas, replicas_as_predicted
from kvpressure.advice.workload import demands_of, desired_replicas
from kvpressure.engines.recordings import stem
from kvpressure.model.verdict import Cause
from kvpressure.model.view import CALM, EngineView, Peer
from kvpressure.simulation.calibrate import Given
from kvpressure.simulation.config_changes import replicas as servers
from kvpressure.simulation.greedy_search import Step
from kvpressure.simulation.models import model_of
from tests.support.advice_cases import advice, advised, case_of
from tests.support.tools import FIXTURES
from tests.support.verdicts import LAB, THRESHOLDS, views

pytestmark = pytest.mark.recorded

KINDS = ("traces/*", "lab/*", "wild/world-[al]*")
RECORDED = sorted(path for kind in KINDS for path in FIXTURES.glob(f"{kind}.jsonl.xz"))
ROOM, BUSY, QUEUED = Peer("chat-1", 0.12, 3.0, 0.0), Peer("chat-2", 0.8, 9.0, 0.0), Peer("chat-3", 0.1, 3.0, 4.0)


def pressed() -> EngineView:
    return [view for view in views(LAB / "kv-collapse-0.12.0.jsonl.xz") if view.observed is not None][-1]


def test_the_first_thing_is_to_use_what_is_there():
    view = pressed()
    first, *rest = advised(view, place=Place(), peers=[BUSY, QUEUED, ROOM]).values()
    assert first.key == "route"
    assert "chat-1 (12% of its KV cache) could take them" in first.why
    assert first.expected.text.startswith("at best") or "up to" in first.expected.text
    assert first.expected.tokens_per_second.after > first.expected.tokens_per_second.before
    assert [action.key for action in rest] == list(advised(view, place=Place()))


def test_nobody_is_sent_to_where_requests_wait_or_the_cache_is_full():
    assert "route" not in advised(pressed(), limits=Limits(), place=Place(), peers=[BUSY, QUEUED])


def test_where_nothing_can_be_predicted_it_says_so():
    found = advice(Cause.KV_CACHE_PRESSURE, preempting=True, admission_blocked=True, peers=[ROOM])
    assert found[0].key == "route"
    assert found[0].expected is None
    assert found[0].expectation.startswith("not predicted: ")


@pytest.mark.parametrize("path", RECORDED, ids=stem)
def test_as_many_replicas_are_advised_as_the_series_counts(path: Path):
    for view in troubled(path):
        more = advised(view, place=Place(runtime=view.runtime)).get("add_replica")
        counted = desired_replicas(demands_of(view.derived), THRESHOLDS)
        if more is not None:  # one more for what the series does not measure
            assert more.value == max(2, counted or 2)
            assert counted != 1 or view.diagnosis.cause is not Cause.KV_CACHE_PRESSURE


def troubled(path: Path) -> list[EngineView]:
    """A view a minute while something is wrong with an engine, and requests of it were seen."""
    found: list[EngineView] = []
    for view in views(path):
        wrong = view.diagnosis.cause not in CALM and view.observed is not None
        if wrong and (not found or view.t - found[-1].t >= 60):
            found.append(view)
    return found


def test_where_one_replica_serves_what_arrives_none_is_added_and_it_says_so():
    view = pressed()
    derived = {**view.derived, "demand_replicas": {"kv_tokens": 0.7}}
    case = case_of(view, derived=derived)
    assert case.replicas == 1
    assert replicas(case, None, "") is None
    model = model_of(Given(view.observed, view.limits, THRESHOLDS))
    assert "kvpressure_desired_replicas counts 1" in enough(case, model).why
    busy = {**view.derived, "demand_replicas": {"kv_tokens": 3.5}}
    more = replicas(case_of(view, derived=busy, observed=None), None, "")
    assert more.value == 5


def test_in_an_overload_it_says_what_arrives_and_what_is_served_and_what_autoscaling_counts():
    view = pressed()
    ended = sum(one.finished or 0.0 for one in view.observed.intervals) / len(view.observed.intervals)
    grows = tuple(
        replace(one, waiting=10.0 + number, finished=ended) for number, one in enumerate(view.observed.intervals)
    )
    observed = replace(view.observed, intervals=grows, minutes=None)
    model = model_of(Given(observed, view.limits, THRESHOLDS))
    change = servers(2)
    expected = model.expected([], [change])
    assert expected is not None
    why = replicas_as_predicted(case_of(view, observed=observed), model, Step(change, expected)).why
    arriving, served, two = model.arriving_per_second(), model.served_per_second(), model.served_per_second([change])
    assert f"{arriving:.2g} requests arrive per second and one replica serves {served:.2g}: 2 serve {two:.2g}" in why
    assert "kvpressure_desired_replicas counts as many" in why
    calm = model_of(Given(view.observed, view.limits, THRESHOLDS))
    assert "arrive per second" not in replicas_as_predicted(case_of(view), calm, Step(change, expected)).why
