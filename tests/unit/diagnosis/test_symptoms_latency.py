"""symptoms: p95 latency is of requests that finished, and those in a queue that is not served have not."""

from dataclasses import replace

import pytest

from kvpressure.diagnosis.symptoms import judge_all
from kvpressure.signals.evidence import OutsideEvidence
from kvpressure.signals.latency import TimeOutsideEngine
from tests.support.verdicts import made


@pytest.mark.parametrize(
    ("factor", "unserved_seconds", "state"),
    [(1.1, 0.0, False), (1.1, 40.0, None), (2.5, 40.0, True), (2.5, 0.0, True), (1.1, None, False)],
)
def test_that_nobody_who_finished_was_late_is_no_evidence_while_a_queue_is_not_served(
    factor: float, unserved_seconds: float | None, state: bool | None
) -> None:
    unserved = {} if unserved_seconds is None else {"queue_unserved_seconds": unserved_seconds}
    found = judge_all(made({}, {"latency_inflation_ratio": {"e2e": factor}, **unserved}))["latency_inflated"]
    assert (found.state, found.value) == (state, factor)
    assert found.text.startswith("not known while a queue is not served") is (state is None)


def test_time_to_first_token_says_nothing_of_the_front_end_while_requests_wait_in_the_engine() -> None:
    calm = made({"demand": 4.0})
    outside = replace(calm, window=replace(calm.window, outside=TimeOutsideEngine(3.0, 0.9, whole=False)))
    queue = replace(outside.window.queue, waiting_ratio=1.0)
    waits = replace(outside, window=replace(outside.window, queue=queue))
    assert [judge_all(polls)["frontend_slow"].state for polls in (outside, waits)] == [True, None]


def test_what_the_pod_says_of_restarts_goes_before_the_count_of_starts() -> None:
    crashes = {"restarting": OutsideEvidence(True, "container restarts: 3 in ten minutes")}
    found = judge_all(replace(made({}), starts=0, external_evidence=crashes))["restarting"]
    assert (found.state, found.text) == (True, "container restarts: 3 in ten minutes")


def test_a_value_and_its_text_have_the_same_digits() -> None:
    found = judge_all(replace(made({}, {}), starts=3))["restarting"]
    assert (found.value, found.text) == (3.0, "server starts in ten minutes: 3")
