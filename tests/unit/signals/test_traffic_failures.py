"""Requests that fail: what a page counts of them, and what that says of the replica."""

from __future__ import annotations

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.exposition.wording import failures_text
from kvpressure.model.samples import CacheConfig, EnginePage, EngineSample
from kvpressure.model.target_status import STATUSES, ReplicaState, replica_state
from kvpressure.model.verdict import Cause
from kvpressure.model.view import cause_of
from kvpressure.signals import traffic
from kvpressure.signals.context import Context
from tests.support.engines import window
from tests.support.pages import made
from tests.support.snapshots import FakeTarget
from tests.support.verdicts import inputs, rule


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
    assert rates(lambda _: {"gateway_failed_per_second": 2.0}, lambda _: {}) == {"gateway": 2.0}
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


@pytest.mark.parametrize(
    ("errors", "tokens", "gauges", "cause", "state"),
    [
        (2.0, 0.0, {}, Cause.STUCK, ReplicaState.STUCK),
        (0.1, 0.0, {}, Cause.IDLE, ReplicaState.SERVES),
        (2.0, 50.0, {"running": 1.0}, Cause.HEALTHY, ReplicaState.SERVES),
        (2.0, 0.0, {"awake": 0.0}, Cause.PAUSED, ReplicaState.WAITS),
        (2.0, 0.0, {"pauses": 1.0, "resumes": 0.0}, Cause.PAUSED, ReplicaState.WAITS),
    ],
)
def test_a_server_that_answers_all_with_errors_is_stuck_and_one_that_serves_any_or_is_paused_is_not(
    errors: float, tokens: float, gauges: dict[str, float], cause: Cause, state: ReplicaState
):
    pipeline = Pipeline(PipelineSettings(), load_thresholds())
    for t in range(100):
        read = {"running": 0.0, "waiting": 0.0, "kv_usage": 0.1, "server_errors": 5.0 + errors * t, **gauges}
        counters = {"generation_tokens": tokens * t, "prompt_tokens": 0.0, "finished": 0.0}
        sample = EngineSample("m", "0", read, counters, cache=CacheConfig(capacity_tokens=1000))
        (view,) = pipeline.on_page(FakeTarget(), EnginePage(float(t), (sample,), 1.0))
    assert (cause_of(view), replica_state(view, STATUSES["read"])) == (cause, state)
    assert view.derived["failed_requests_total"] == {"server_error": pytest.approx(5.0 + errors * 99)}
    if cause is Cause.STUCK:
        assert view.diagnosis is not None
        assert (view.diagnosis.detail, view.diagnosis.grounds) == (
            "only_errors",
            "In the last minute the server answered 2 requests/s with an error (5xx), and not one token was computed.",
        )


def test_clients_that_cancel_are_counted_and_are_no_failure_of_the_replica():
    found = traffic.derive_failures(window(61, counters=lambda t: {"aborted": 2.0 * t}), Context(load_thresholds()))
    assert found["failed_requests_total"] == {"abort": 120.0}
    cancelled = rule(inputs(busy=False, demand=0.0, waiting=0.0, waiting_ratio=0.0, derived=found))
    assert cancelled.cause is not Cause.STUCK


@pytest.mark.parametrize(("status", "count"), [(b"503", 7.0), (b"500", 7.0), (b"200", None), (b"429", None)])
def test_errors_of_sglangs_server_are_read_by_their_status(status: bytes, count: float | None):
    line = b'sglang:http_responses_total{endpoint="/generate",method="POST",status_code="%s"} 7\n' % status
    running = b'sglang:num_running_reqs{model_name="m"} 0\nsglang:num_queue_reqs{model_name="m"} 0\n'
    (engine,) = PageReader().read(running + line, 1.0).engines
    assert engine.gauges.get("server_errors") == count
