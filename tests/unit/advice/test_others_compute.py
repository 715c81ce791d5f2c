"""Advice where the GPU is the limit: by the recording of a long prompt with others behind it."""

from __future__ import annotations

import pytest

from kvpressure.advice.advise import Limit, Limits, Place, advise
from kvpressure.model.action import Action
from kvpressure.model.verdict import Cause
from kvpressure.runtimes.registry import ASSUMED
from tests.support.verdicts import LAB, THRESHOLDS, views

pytestmark = pytest.mark.recorded


@pytest.fixture(scope="module")
def advised():
    view = views(LAB / "compute-long-prompt-0.33.0.jsonl.xz")[-1]
    assert (view.diagnosis.cause, view.diagnosis.detail) == (Cause.COMPUTE_BOUND, "long_prompt")

    def advised(**limits: Limit) -> tuple[Action, ...]:
        return advise(view.diagnosis, view.derived, Limits(**limits), Place(), THRESHOLDS)

    return advised


def test_others_get_into_the_steps_of_a_long_prompt(advised):
    replica, share, apply, *others = advised(max_num_batched_tokens=Limit(2048.0))
    assert (replica.key, share.key) == ("add_replica", "long_prompt")
    assert share.flags == apply.flags == {"--long-prefill-token-threshold": "512"}
    assert share.new == "512 for --long-prefill-token-threshold"
    assert [action.key for action in others] == ["less_work", "verify"]


def test_where_the_tokens_of_a_step_are_not_known_no_number_is_made_up(advised):
    _, share, *others = advised()
    assert share.flags == {}
    assert share.new == ASSUMED.advice.remedies.details["long_prompt"].new
    assert [action.key for action in others] == ["less_work", "verify"]
