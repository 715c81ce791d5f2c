"""Requests that fail: what a page counts of them, and what that says of the replica."""

from __future__ import annotations

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.reader import PageReader
from kvpressure.exposition.wording import failures_text
from kvpressure.model.target_status import STATUSES, ReplicaState, replica_state
from kvpressure.model.verdict import Cause, Diagnosis, Stage
from kvpressure.signals import traffic
from kvpressure.signals.context import Context
from tests.support.engines import window
from tests.support.pages import made
from tests.support.views import engine_view


def rates(gauges, counters):
    return traffic.derive_failures(window(61, gauges, counters), Context(load_thresholds())).get(
        "failed_requests_per_second", {}
    )


def test_requests_of_each_kind_are_counted_by_the_second_and_kinds_that_never_came_are_absent():
    found = rates(
        lambda t: {"server_errors": 3.0 * t} if t >= 30 else {}, lambda t: {"failed": 0.5 * t, "aborted": 0.0}
    )
    assert found == {"error": pytest.approx(0.5), "server_error": pytest.approx(3.0, rel=0.05)}
    assert rates(lambda _: {}, lambda _: {"failed": 0.0, "aborted": 0.0}) == {}
    assert rates(lambda _: {"server_errors": 7.0}, lambda _: {"aborted": 5.0}) == {"abort": 0.0, "server_error": 0.0}


def test_the_texts_say_what_happened_to_how_many():
    assert failures_text({"failed_requests_per_second": {"server_error": 2.0, "abort": 0.25}}) == (
        "2 requests/s answered with an error (5xx), 0.25 requests/s aborted"
    )
    assert failures_text({"failed_requests_per_second": {"abort": 0.0}}) == failures_text({}) == ""


@pytest.mark.parametrize(
    ("line", "count"),
    [
        (b'http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 12\n', 12.0),
        (b'dynamo_component_errors_total{dynamo_endpoint="generate",error_type="generate"} 3\n', 3.0),
        (b'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 12\n', None),
    ],
)
def test_errors_of_the_server_are_read_from_its_own_counters(line: bytes, count: float | None):
    ended = b'vllm:request_success_total{engine="0",finished_reason="error",model_name="m"} 5\n'
    (engine,) = PageReader().read(made("0.33.0") + line + ended, 1.0).engines
    assert (engine.gauges.get("server_errors"), engine.counters["failed"]) == (count, 5.0)


def test_a_replica_that_answers_every_request_with_an_error_is_stuck_however_calm_its_page_is():
    calm = Diagnosis(0.0, 0.0, Cause.IDLE, 1.0, None, Stage.NONE, {})
    failing = {"failed_requests_per_second": {"server_error": 2.0}}
    assert replica_state(engine_view(derived={}, diagnosis=calm), STATUSES["read"]) is ReplicaState.SERVES
    assert replica_state(engine_view(derived={**failing}, diagnosis=calm), STATUSES["read"]) is ReplicaState.STUCK
    busy = {**failing, "tokens_per_second": {"generation": 900.0}}
    assert replica_state(engine_view(derived=busy, diagnosis=calm), STATUSES["read"]) is ReplicaState.SERVES
