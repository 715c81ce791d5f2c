"""Advice by detail: what to raise, and where nothing tells what, how to find out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvpressure.advice.advise import Limit, Limits, Place, advise
from kvpressure.model.verdict import DETAILS, Cause
from kvpressure.model.view import EngineView
from kvpressure.runtimes.registry import ASSUMED
from tests.support.verdicts import LAB, THRESHOLDS, views

pytestmark = pytest.mark.recorded


@pytest.fixture(scope="module")
def view() -> EngineView:
    return views(LAB / "deferred-lora-0.33.0.jsonl.xz")[-1]


@pytest.mark.parametrize("detail", DETAILS[Cause.DEFERRED])
def test_every_kind_of_deferral_has_a_remedy_in_vllms_own_words(view: EngineView, detail: str):
    assert view.diagnosis is not None
    deferred = replace(view.diagnosis, cause=Cause.DEFERRED, detail=detail)
    (action,) = advise(deferred, view.derived, Limits(), Place(), THRESHOLDS)
    assert action.key == detail
    assert ASSUMED.advice.remedies.details[detail].why in action.why
    assert 'cause="deferred"} == 0' in action.verify


def test_without_a_detail_the_first_thing_is_to_find_out(view: EngineView):
    assert view.diagnosis is not None
    deferred = replace(view.diagnosis, cause=Cause.DEFERRED, detail="")
    assert [action.key for action in advise(deferred, {}, Limits(), Place(), THRESHOLDS)] == ["see_what_is_waited_for"]


def test_more_sequences_are_advised_only_where_a_cap_on_sequences_holds(view: EngineView):
    assert view.diagnosis is not None

    def keys(detail: str, **limits: object) -> list[str]:
        bound = replace(view.diagnosis, cause=Cause.CONCURRENCY_BOUND, detail=detail)
        return [action.key for action in advise(bound, view.derived, Limits(**limits), Place(), THRESHOLDS)]

    assert keys("sequence_cap") == ["add_replica", "max_num_seqs"]
    assert keys("")[0] == "another_limit"
    assert keys("head_of_line")[:2] == ["add_replica", "head_of_line"]
    budget = Limit(2048.0)
    assert keys("prefill_budget", max_num_batched_tokens=budget)[1:3] == ["max_num_batched_tokens", "apply"]
