"""What the first pass asks the server, and what it makes of the answers."""

import itertools
from typing import Any

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.prometheus import client
from kvpressure.prometheus.names import Selection, Spelled, Target, spelled
from kvpressure.prometheus.paging import Span, pages
from kvpressure.runtimes.registry import TABLES
from kvpressure_incidents.screens import Screen, screened, screens, stretches
from tests.support.fake_prometheus import FakePrometheus, success

LIMITS = load_thresholds()
PAGE = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_preemptions_total",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_inference_time_seconds_sum",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count",
]


def of(*present: str) -> Spelled:
    (one,) = spelled(TABLES, present or PAGE)
    return one


def asked(*present: str, step: float = 15.0, **changes: Any) -> dict[str, Screen]:
    chosen = Selection('namespace="prod"')
    return {one.name: one for one in screens(of(*present), chosen, step, LIMITS.with_values(**changes))}


def test_what_began_within_the_last_step_is_seen() -> None:
    with (
        FakePrometheus(lambda _: success({"resultType": "matrix", "result": []})) as server,
        client.Prometheus(client.Server(server.url)) as prometheus,
    ):
        for end in (600.0, 601.0, 899.0):
            screened(prometheus, asked()["queue"], of(), Span(0.0, end))
        assert [float(one.query["end"]) for one in server.requests] == [600.0, 900.0, 900.0]


def test_every_question_is_about_the_selected_engines() -> None:
    found = asked()
    assert set(found) == {"queue", "preemptions", "standstill", "outside"}
    for one in found.values():
        assert one.expr.count('{namespace="prod"}') == one.expr.count("[") > 0, one.expr


@pytest.mark.parametrize("step", [15.0, 30.0, 60.0])
def test_one_window_holds_the_whole_of_the_shortest_incident_wherever_it_lies(step: float) -> None:
    for one in asked(step=step).values():
        if one.name in ("queue", "preemptions"):
            assert one.looks_back - one.step >= min(120.0, 2 * step)
        assert one.looks_back >= one.step, "windows leave no gap"
        assert f"[{one.looks_back:.0f}s]" in one.expr


def test_a_queue_in_fewer_scrapes_is_asked_for_where_the_verdict_asks_for_less() -> None:
    def share(ratio: float) -> float:
        expr = asked(waiting_min_ratio=ratio)["queue"].expr
        return 1 - float(expr.removeprefix("quantile_over_time(").partition(",")[0])

    assert share(0.25) == pytest.approx(share(0.5) / 2, rel=0.01)
    # Of the 28 scrapes of seven minutes, the four of an incident of two minutes in which somebody waits.
    assert share(LIMITS.queue.waiting_min_ratio) * 420 / 15 < LIMITS.queue.waiting_min_ratio * 120 / 15


def test_what_a_page_does_not_have_is_not_asked_for() -> None:
    assert set(asked("vllm:num_requests_running")) == set()
    assert set(asked("vllm:num_requests_running", "vllm:num_requests_waiting")) == {"queue"}
    older = [name for name in PAGE if "_latency_" not in name]
    assert "time_to_first_token_seconds_sum" in asked(*older)["outside"].expr


def test_time_outside_the_engine_is_let_through_before_it_is_bad() -> None:
    assert ">= 0.700 *" in asked(frontend_slow_min_seconds=1.0)["outside"].expr


class Server:
    """Answers with one series whatever is asked."""

    def __init__(self, times: list[float]) -> None:
        self.times = times

    def range(self, _: str, start: float, end: float, __: float) -> list[dict[str, Any]]:
        values = [[t, "1"] for t in self.times if start <= t <= end]
        return [{"metric": {"pod": "a", "namespace": "n", "engine": engine}, "values": values} for engine in "01"]


def test_values_become_the_time_that_they_speak_of_and_ranks_of_a_page_one_target() -> None:
    one = Screen("queue", "x", 300.0, 420.0, 86_400.0)
    server: Any = Server([600.0, 900.0, 3000.0])
    ((labels, spans),) = screened(server, one, of(), Span(0.0, 6000.0))
    assert (Target(tuple(labels)).name, spans) == ("n/a", [(180.0, 900.0), (2580.0, 3000.0)])


def test_pages_of_all_screens_cover_the_time() -> None:
    whole = Span(0.0, 30 * 86_400.0)
    for one in asked().values():
        its = list(pages(whole, one.step, one.page_seconds))
        assert (its[0].start, its[-1].end) == (whole.start, whole.end)
        assert all(before.end == after.start for before, after in itertools.pairwise(its))


def test_stretches_have_time_around_them_and_stay_within_the_time_looked_at() -> None:
    whole = Span(0.0, 10_000.0)
    found = stretches([Span(100.0, 500.0), Span(9_900.0, 9_950.0)], whole, 1200.0, 600.0)
    assert found == [Span(0.0, 1100.0), Span(8_700.0, 10_000.0)]
    assert stretches([Span(2000.0, 2100.0), Span(3000.0, 3100.0)], whole, 1200.0, 600.0) == [Span(800.0, 3700.0)]
    assert stretches([], whole, 1200.0, 600.0) == []
