import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.config.thresholds import load_thresholds
from kvpressure.diagnosis.symptoms import judge_all
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.exposition.wording import failures_text
from kvpressure.model.samples import CacheConfig, EnginePage, EngineSample
from kvpressure.model.target_status import STATUSES, ReplicaState, replica_state
from kvpressure.model.verdict import Cause
from kvpressure.model.view import cause_of
from kvpressure.signals import compute, traffic
from kvpressure.signals.context import Context
from kvpressure.signals.traffic import PROMPT_BOUNDS, powers_of_two
from kvpressure.signals.windows import EngineWindow
from tests.support.engines import CONTEXT, histogram, window
from tests.support.pages import made
from tests.support.snapshots import FakeTarget
from tests.support.verdicts import inputs, rule


def test_prompts_beyond_the_last_bucket_end_at_the_next_of_the_series():
    # max_model_len 4096: vLLM's last bound is 2000, so the +Inf bucket holds prompts of 2000 to 5000 tokens.
    shape = histogram((1000.0, 2000.0), (0.0, 0.0, 100.0), 300_000.0)
    assert traffic.token_quantile(shape, 0.5) == pytest.approx(3500)
    assert traffic.token_quantile(shape, 0.5, longest=4096) == pytest.approx(3048)
    assert traffic.token_quantile(histogram((1000.0, 5000.0), (0.0, 0.0, 10.0)), 1.0) == 10_000


@given(st.lists(st.integers(0, 500), min_size=13, max_size=13))
def test_powers_of_two_are_a_histogram_of_the_same_observations(steps):
    bounds = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
    counts = tuple(float(sum(steps[: i + 1])) for i in range(13))
    made = powers_of_two(histogram(bounds, counts, 1.0), PROMPT_BOUNDS)
    assert made.bounds == (*PROMPT_BOUNDS, math.inf)
    assert list(made.counts) == sorted(made.counts)
    assert made.count == counts[-1]
    assert made.counts[PROMPT_BOUNDS.index(16384.0)] == counts[-1]  # above 10000, where the series would go on


def arrivals(per_second):
    total = [0.0]
    for t in range(200):
        total.append(total[-1] + per_second(t))
    return lambda t: {"finished": total[t]}


@pytest.mark.parametrize(
    ("waiting", "per_second", "expected"),
    [
        pytest.param(lambda _: 0.0, lambda _: 2.0, pytest.approx(1.0, abs=0.15), id="steady"),
        pytest.param(lambda _: 0.0, lambda t: 60.0 if t == 30 else 0.0, pytest.approx(12, abs=1), id="a burst"),
        pytest.param(lambda t: 60.0 * (t >= 30), lambda _: 0.0, pytest.approx(12, abs=1), id="still in the engine"),
        pytest.param(lambda _: 0.0, lambda _: 0.0, None, id="none"),
    ],
)
def test_burstiness_is_the_highest_of_arrivals_over_their_mean(waiting, per_second, expected):
    made = window(61, lambda t: {"running": 0.0, "waiting": waiting(t)}, arrivals(per_second))
    assert traffic.burstiness(made) == expected


# Requests that fail: what a page counts of them, and what that says of the replica.


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


# Load shed: what is counted, and what it changes about a verdict.


SHED = {"requests_refused_per_second": 2.0}
NO_QUEUE = {"waiting": 0.0, "waiting_ratio": 0.0, "blocked_ratio": 0.0, "blocked_by_long_ratio": 0.0}


def engine(refused: Callable[[int], dict[str, float]]) -> EngineWindow:
    """Eight run and one ends every second; `refused` gives the counter at each poll."""
    gauges = {"running": 8.0, "waiting": 0.0, "kv_usage": 0.1}
    return window(60, lambda _: gauges, lambda t: {"finished": float(t), **refused(t)})


def derived(refused: Callable[[int], dict[str, float]]) -> dict[str, Any]:
    return dict(compute(engine(refused), CONTEXT).derived)


def test_refusals_are_reported_as_a_rate_and_as_a_share_of_what_was_sent():
    found = derived(lambda t: {"rejected": 3.0 * t})
    assert found["requests_refused_per_second"] == pytest.approx(3.0)
    assert found["refused_request_ratio"] == pytest.approx(3 / 4)


@pytest.mark.parametrize("refused", [lambda _: {}, lambda _: {"rejected": 0.0}], ids=["no counter", "never any"])
def test_an_engine_that_has_refused_nobody_has_no_such_series(refused):
    assert not {"requests_refused_per_second", "refused_request_ratio"} & set(derived(refused))


def test_one_that_has_stopped_refusing_says_0():
    found = derived(lambda _: {"rejected": 40.0})
    assert (found["requests_refused_per_second"], found["refused_request_ratio"]) == (0.0, 0.0)


def test_of_several_ranks_nobody_knows_whose_refusals_the_page_counts():
    one = PageReader().read(made("0.33.0"), 0.0).engines[0]
    other = [line for line in made("0.33.0", engine="1").splitlines() if b'engine="1"' in line]
    several = b"\n".join([made("0.33.0").rstrip(), *other, b""])
    assert one.counters["rejected"] > 0
    assert [("rejected" in rank.counters) for rank in PageReader().read(several, 0.0).engines] == [False, False]


def test_the_symptom_is_there_only_where_somebody_was_ever_refused():
    assert "load_shed" not in judge_all(inputs())
    assert judge_all(inputs(SHED, refused_ratio=0.2))["load_shed"].state is True
    assert judge_all(inputs(SHED, refused_ratio=0.01))["load_shed"].state is False
    assert judge_all(inputs(SHED))["load_shed"].state is None, "nobody sent anything"
    assert "2.0 a second" in judge_all(inputs(SHED, refused_ratio=0.2))["load_shed"].text


@pytest.mark.parametrize(
    ("recent", "expected"),
    [
        (NO_QUEUE | {"refused_ratio": 0.5}, Cause.CONCURRENCY_BOUND),
        (NO_QUEUE | {"refused_ratio": 0.01}, Cause.HEALTHY),
        (NO_QUEUE | {"refused_ratio": 1.0, "busy": False, "demand": 0.0}, Cause.CONCURRENCY_BOUND),
        ({"blocked_ratio": 0.9, "blocked_by_long_ratio": 0.9, "refused_ratio": 0.5}, Cause.KV_CACHE_PRESSURE),
    ],
    ids=["nobody waits", "hardly any refused", "all refused", "those let in do not fit"],
)
def test_an_engine_in_which_nobody_waits_because_they_are_sent_away_is_not_healthy(recent, expected):
    made_of = inputs(SHED, **recent)
    won = rule(made_of)
    assert won.cause is expected
    assert (won.detail == "queue_limit") is (expected is Cause.CONCURRENCY_BOUND)
