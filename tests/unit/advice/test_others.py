"""Advice by detail: what to raise, and where nothing tells what, how to find out."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvpressure.advice.advise import Limit, Limits, Place
from kvpressure.model.action import Action
from kvpressure.model.verdict import DETAILS, Cause
from kvpressure.model.view import EngineView
from kvpressure.runtimes.registry import ASSUMED
from tests.support.advice_cases import advised
from tests.support.verdicts import LAB, views

pytestmark = pytest.mark.recorded

UNKNOWN = {"limits": Limits(), "place": Place(), "observed": None}


@pytest.fixture(scope="module")
def view() -> EngineView:
    return views(LAB / "deferred-lora-0.33.0.jsonl.xz")[-1]


@pytest.mark.parametrize("detail", DETAILS[Cause.DEFERRED])
def test_every_kind_of_deferral_has_a_remedy_in_vllms_own_words(view: EngineView, detail: str):
    deferred = replace(view.diagnosis, cause=Cause.DEFERRED, detail=detail)
    (action,) = advised(view, diagnosis=deferred, **UNKNOWN).values()
    assert action.key == detail
    assert ASSUMED.advice.remedies.details[detail].why in action.why
    assert 'cause="deferred"} == 0' in action.verify


def test_without_a_detail_the_first_thing_is_to_find_out(view: EngineView):
    deferred = replace(view.diagnosis, cause=Cause.DEFERRED, detail="")
    assert list(advised(view, diagnosis=deferred, **UNKNOWN | {"derived": {}})) == ["see_what_is_waited_for"]


def test_more_sequences_are_advised_only_where_a_cap_on_sequences_holds(view: EngineView):

    def keys(detail: str, **limits: object) -> list[str]:
        bound = replace(view.diagnosis, cause=Cause.CONCURRENCY_BOUND, detail=detail)
        return list(advised(view, diagnosis=bound, **UNKNOWN | {"limits": Limits(**limits)}))

    assert keys("sequence_cap") == ["add_replica", "max_num_seqs"]
    assert keys("")[0] == "another_limit"
    assert keys("head_of_line")[:2] == ["add_replica", "head_of_line"]
    budget = Limit(2048.0)
    assert keys("prefill_budget", max_num_batched_tokens=budget)[1:3] == ["max_num_batched_tokens", "apply"]


@pytest.fixture(scope="module")
def of_long_prompt() -> Callable[..., tuple[Action, ...]]:
    view = views(LAB / "compute-long-prompt-0.33.0.jsonl.xz")[-1]
    assert (view.diagnosis.cause, view.diagnosis.detail) == (Cause.COMPUTE_BOUND, "long_prompt")

    return lambda **limits: tuple(advised(view, **UNKNOWN | {"limits": Limits(**limits)}).values())


def test_others_get_into_the_steps_of_a_long_prompt(of_long_prompt):
    replica, share, apply, *others = of_long_prompt(max_num_batched_tokens=Limit(2048.0))
    assert (replica.key, share.key) == ("add_replica", "long_prompt")
    assert share.flags == apply.flags == {"--long-prefill-token-threshold": "512"}
    assert share.new == "512 for --long-prefill-token-threshold"
    assert [action.key for action in others] == ["less_work", "verify"]


def test_where_the_tokens_of_a_step_are_not_known_no_number_is_made_up(of_long_prompt):
    _, share, *others = of_long_prompt()
    assert share.flags == {}
    assert share.new == ASSUMED.advice.remedies.details["long_prompt"].new
    assert [action.key for action in others] == ["less_work", "verify"]
