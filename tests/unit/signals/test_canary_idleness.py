"""Since when an engine is idle, over polls made by hand."""

from __future__ import annotations

from kvpressure.signals.canary import Idleness
from kvpressure.signals.points import Point

IDLE = {"running": 0.0, "waiting": 0.0}


def point(t: float, tokens: float = 100.0, finished: float = 5.0, **gauges: float) -> Point:
    return Point(t, {**IDLE, **gauges}, {"generation_tokens": tokens, "prompt_tokens": tokens, "finished": finished})


def follow(idleness: Idleness, *points: Point, ours: bool = False) -> float | None:
    for one in points:
        idleness.take(one, ours=ours)
    return idleness.since


def test_it_begins_with_the_first_poll_that_shows_nothing():
    assert follow(Idleness(), point(1.0, running=1.0), point(2.0), point(3.0)) == 2.0
    assert follow(Idleness(), point(1.0), point(2.0, waiting=1.0), point(3.0)) == 3.0


def test_a_request_that_came_and_went_between_two_polls_is_traffic():
    assert follow(Idleness(), point(1.0), point(2.0), point(3.0, tokens=110.0, finished=6.0)) is None


def test_what_was_counted_before_is_traffic_but_not_on_a_server_that_has_just_started():
    assert follow(Idleness(), point(1.0), point(2.0)) == 1.0
    assert follow(Idleness(started=True), point(1.0), point(2.0)) is None
    assert follow(Idleness(), point(1.0, 0.0, 0.0), point(2.0, 0.0, 0.0)) is None


def test_without_both_gauges_nobody_knows():
    unknown = Point(2.0, {"running": 0.0}, {})
    assert follow(Idleness(), point(1.0), unknown) is None


def test_our_own_request_is_no_traffic_and_one_beside_it_is():
    def since(*points: Point) -> float | None:
        idleness = Idleness()
        follow(idleness, point(1.0))
        return follow(idleness, *points, ours=True)

    assert since(point(2.0, waiting=1.0), point(3.0, running=1.0), point(4.0, 101.0, 6.0)) == 1.0
    assert since(point(2.0, running=2.0)) is None
    assert since(point(2.0, 102.0, 6.0)) is None
    assert since(point(2.0, 101.0, 7.0)) is None
