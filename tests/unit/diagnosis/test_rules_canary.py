"""What the answer to a request of one token changes about a verdict."""

from __future__ import annotations

import dataclasses

import pytest

from kvpressure.diagnosis.diagnose import Diagnostician
from kvpressure.diagnosis.facts import Inputs
from kvpressure.model.verdict import Cause, Diagnosis
from kvpressure.signals.canary import CANARY_UNANSWERED
from kvpressure.signals.evidence import OutsideEvidence
from tests.support.verdicts import inputs, rule

IDLE = {"busy": False, "demand": 0.0, "waiting": 0.0, "waiting_ratio": 0.0, "kv_usage_ratio": 0.0}
FROZEN = {"frozen_seconds": 40.0}


def judged(state: bool | None, seconds: int = 10, **recent: object) -> Diagnosis:
    """The verdict after so many polls on the same evidence."""
    made = inputs(**recent)  # type: ignore[arg-type]
    judged = dataclasses.replace(made, external_evidence={CANARY_UNANSWERED: OutsideEvidence(state, "what happened")})
    diagnostician = Diagnostician()
    return [diagnostician.diagnose(float(t), judged) for t in range(seconds)][-1]


def test_an_idle_page_and_no_answer_is_stuck_and_says_so():
    found = judged(True, **IDLE)
    assert (found.cause, found.detail, found.grounds) == (Cause.STUCK, "unanswered", "What happened.")
    assert judged(False, **IDLE).cause is Cause.IDLE
    assert judged(None, **IDLE).cause is Cause.IDLE


def test_a_frozen_page_and_an_answer_is_unknown_and_says_so():
    found = judged(False, **FROZEN)
    assert (found.cause, found.detail, found.grounds) == (Cause.UNKNOWN, "statistics_late", "What happened.")
    assert judged(None, **FROZEN).cause is Cause.STUCK


def test_a_queue_that_stands_still_and_an_answer_is_unknown_where_no_page_says_how_full_the_cache_is():
    still = {"still_seconds": 20.0, "kv_usage_ratio": None, "blocked_ratio": None}
    assert (judged(False, **still).cause, judged(False, **still).detail) == (Cause.UNKNOWN, "statistics_late")
    assert judged(None, **still).cause is Cause.STUCK


def test_a_frozen_page_and_no_answer_is_surer_than_a_frozen_page():
    alone, both = judged(None, **FROZEN), judged(True, **FROZEN)
    assert both.confidence > alone.confidence
    assert (both.detail, both.grounds.endswith("What happened.")) == ("frozen", True)


def test_evidence_that_is_missing_names_the_setting_until_it_is_on():
    made = inputs(**FROZEN)  # type: ignore[arg-type]
    missing = [one.how for one in Diagnostician().diagnose(0.0, made).missing]
    assert any("engines.canary" in how for how in missing)
    assert not any("engines.canary" in one.how for one in judged(None, **FROZEN).missing)


@pytest.mark.parametrize(
    ("state", "pressed", "cause", "detail"),
    [
        (False, True, Cause.HOST_BOUND, "cpu"),
        (False, None, Cause.UNKNOWN, "statistics_late"),
        (True, None, Cause.STUCK, "frozen"),
        (None, None, Cause.STUCK, "frozen"),
    ],
)
def test_what_is_left_of_a_frozen_page_after_the_answer(state, pressed, cause, detail):
    evidence = {CANARY_UNANSWERED: OutsideEvidence(state, ""), "cpu_pressed": OutsideEvidence(pressed, "")}
    won = rule(dataclasses.replace(inputs(**FROZEN), external_evidence=evidence))
    assert (won.cause, won.detail) == (cause, detail)


@pytest.mark.parametrize("state", [True, False, None])
def test_a_cache_full_of_blocks_that_nobody_fetches_stays_what_it_is_whatever_is_answered(state):
    stranded = inputs(still_seconds=40.0, blocked_ratio=1.0, blocked_by_long_ratio=1.0)
    evidence = {CANARY_UNANSWERED: OutsideEvidence(state, "")}
    assert rule(dataclasses.replace(stranded, external_evidence=evidence)).id == "kv.stranded"


def test_what_stands_still_for_a_moment_is_stuck_where_nobody_answers():
    began = {"frozen_seconds": 5.0}
    assert judged(True, **began).detail == "frozen"
    assert judged(None, **began).cause is not Cause.STUCK


def test_where_no_request_is_sent_there_is_no_such_symptom():
    made: Inputs = inputs()
    assert CANARY_UNANSWERED not in Diagnostician().diagnose(0.0, made).symptoms
