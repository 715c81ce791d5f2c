"""The bench of uneven replicas: what counts as uneven, what an alert owes, and what promtool said."""

from __future__ import annotations

import pytest

from bench.scaling.replica import ROUTERS, where_it_fits
from bench.scaling.shapes import Request
from bench.uneven.__main__ import ALERTS, HELD_OUT, MINUTES, TRAFFIC, at_edge, owed, said, uneven


class _Replica:
    def __init__(self, number: int, *tokens: int, slower: float = 1.0) -> None:
        self.number, self.slower = number, slower
        self.requests = {str(at): Request(0.0, length, 0) for at, length in enumerate(tokens)}


def test_a_minute_is_uneven_where_the_same_requests_wait_half_as_long_and_a_second_less() -> None:
    waits = [
        (0.0, [(0.0, 3.0), (5.0, 6.0)]),
        (50.0, [(50.0, 54.0), (100.0, 125.0)]),
        (59.9, [(59.9, 61.0)]),
        (61.0, []),
    ]
    fitting = [(0.0, [(0.0, 2.0)]), (50.0, [(50.0, 62.0)]), (59.9, []), (61.0, [])]
    assert uneven(waits, fitting) == [True, *[False] * (MINUTES - 1)]
    assert uneven(waits, fitting, present=True) == [*[True] * 3, *[False] * (MINUTES - 3)]


def test_an_alert_owes_what_has_lasted_and_nothing_where_nothing_was() -> None:
    true = [False] * 5 + [True] * 15 + [False] * 20
    found = [owed(true, minute) for minute in range(MINUTES)]
    assert found == [False] * 5 + [None] * 13 + [True] * 2 + [None] * 13 + [False] * 7
    assert [minute for minute in range(MINUTES) if at_edge(true, minute)] == [4, 5, 19, 20]


@pytest.mark.parametrize("name", ROUTERS)
def test_routers_choose_by_what_they_know(name: str) -> None:
    replicas = [_Replica(0, 9000), _Replica(1, 10, 10), _Replica(2, 5000, 5000, 5000), _Replica(3, 100, 100)]
    request = Request(0.0, 1000, 30, session=2, shared=800)
    expected = {"round robin": 0, "least requests": 0, "session-sticky": 2, "prefix-affine": 0}
    assert ROUTERS[name]()(request, replicas).number == expected[name]  # type: ignore[arg-type]


def test_where_it_fits_is_where_there_are_the_fewest_tokens_for_how_slow_it_is() -> None:
    send, request = where_it_fits(), Request(0.0, 1000, 0)
    assert send(request, [_Replica(0, 9000), _Replica(1, 10, 10)]).number == 1  # type: ignore[list-item]
    assert send(request, [_Replica(0, 900), _Replica(1, 10, slower=9.0)]).number == 0  # type: ignore[list-item]


def test_every_router_gets_the_same_requests() -> None:
    assert TRAFFIC[0].requests() != HELD_OUT[0].requests()
    for traffic in (*TRAFFIC, *HELD_OUT):
        assert traffic.requests() == traffic.requests()
        assert {one.shared < one.prompt for one in traffic.requests()} == {True}


@pytest.mark.parametrize("alert", ALERTS)
def test_rules_that_are_told_nothing_say_nothing(alert: str) -> None:
    series = {"kvpressure_engine_up{}": ["1"] * 8, "vllm:num_requests_running{}": ["1"] * 8}
    assert said(alert, [{"series": series}]) == ({}, {})
