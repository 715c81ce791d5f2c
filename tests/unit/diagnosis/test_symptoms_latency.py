"""symptoms: p95 latency is of requests that finished, and those in a queue that is not served have not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvpressure.diagnosis.symptoms import judge_all
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


def test_a_value_and_its_text_have_the_same_digits() -> None:
    found = judge_all(replace(made({}, {}), starts=3))["restarting"]
    assert (found.value, found.text) == (3.0, "server starts in ten minutes: 3")
