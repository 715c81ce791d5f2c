"""Requests to replicas that have room."""

from __future__ import annotations

import pytest

from kvpressure.advice.advise import Limits, Place, advise
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView, Peer
from tests.support.advice_cases import advice
from tests.support.verdicts import LAB, THRESHOLDS, views

pytestmark = pytest.mark.recorded

ROOM, BUSY, QUEUED = Peer("chat-1", 0.12, 3.0, 0.0), Peer("chat-2", 0.8, 9.0, 0.0), Peer("chat-3", 0.1, 3.0, 4.0)


def pressed() -> EngineView:
    return [view for view in views(LAB / "kv-collapse-0.12.0.jsonl.xz") if view.observed is not None][-1]


def test_the_first_thing_is_to_use_what_is_there():
    view = pressed()
    assert view.diagnosis is not None
    first, *rest = advise(
        *(view.diagnosis, view.derived, view.limits, Place(), THRESHOLDS),
        observed=view.observed,
        peers=[BUSY, QUEUED, ROOM],
    )
    assert first.key == "route"
    assert "chat-1 (12% of its KV cache) could take them" in first.why
    assert first.expected is not None
    assert first.expected.text.startswith("at best") or "up to" in first.expected.text
    assert first.expected.tokens_per_second.after > first.expected.tokens_per_second.before
    assert [action.key for action in rest] == [
        action.key
        for action in advise(*(view.diagnosis, view.derived, view.limits, Place(), THRESHOLDS), observed=view.observed)
    ]


def test_nobody_is_sent_to_where_requests_wait_or_the_cache_is_full():
    view = pressed()
    assert view.diagnosis is not None
    actions = advise(
        *(view.diagnosis, view.derived, Limits(), Place(), THRESHOLDS), observed=view.observed, peers=[BUSY, QUEUED]
    )
    assert "route" not in [action.key for action in actions]


def test_where_nothing_can_be_predicted_it_says_so():
    found = advice(Cause.KV_CACHE_PRESSURE, preempting=True, admission_blocked=True, peers=[ROOM])
    assert found[0].key == "route"
    assert found[0].expected is None
    assert found[0].expectation.startswith("not predicted: ")
