"""signals.room: what waits and does not fit, reported by the runtime or by free tokens."""

import pytest

from kvpressure.model.samples import CacheConfig
from kvpressure.signals.points import Point, Polls
from kvpressure.signals.room import MIN_PEAK_POLLS, Poll, at_peak, blocked_ratio, do_not_fit, poll, room_is_unseen

ROOM, FULL = 500.0, 50.0


def waits(free: float | None = None, room: float | None = None, *, fits: bool = True, waiting: float = 3.0) -> Poll:
    return Poll(4.0, waiting, free, room, fits)


@pytest.mark.parametrize(
    ("one", "blocked"),
    [
        (waits(ROOM), False),
        (waits(FULL), True),
        (waits(ROOM, fits=False), None),
        (waits(FULL, fits=False), True),
        (waits(None), None),
        (waits(ROOM, 2.0), True),
        (waits(FULL, 0.0), False),
        (waits(FULL, 0.0, waiting=0.0), False),
    ],
)
def test_what_the_runtime_tells_goes_before_free_tokens_and_a_fit_may_say_nothing(one: Poll, blocked: bool | None):
    assert do_not_fit([one], 100.0) == [blocked]


def test_where_a_runtime_tells_at_some_polls_these_are_judged():
    polls = [waits(ROOM, 2.0, fits=False), waits(ROOM, 0.0, fits=False), *[waits(ROOM, fits=False)] * 6]
    assert blocked_ratio(polls, 100.0) == 0.5


def test_where_a_fit_says_nothing_the_share_is_of_all_polls_and_none_is_no_share():
    polls = [waits(FULL, fits=False), *[waits(ROOM, fits=False)] * 3]
    assert blocked_ratio(polls, 100.0) == 0.25
    assert blocked_ratio(polls[1:], 100.0) is None
    assert blocked_ratio([waits(ROOM, fits=False, waiting=0.0)], 100.0) == 0.0


@pytest.mark.parametrize(
    ("cache", "gauges", "unseen"),
    [
        (CacheConfig(), {}, False),
        (CacheConfig(admission="unseen"), {}, True),
        (CacheConfig(admission="unseen"), {"waiting_room": 0.0}, False),
    ],
)
def test_room_is_unseen_where_it_is_taken_and_not_counted(cache: CacheConfig, gauges: dict[str, float], unseen: bool):
    assert room_is_unseen(Polls([Point(1.0, gauges, {})]), cache) is unseen


def test_a_poll_of_a_page_without_a_share_has_no_free_tokens():
    read = poll(Point(1.0, {"running": 2.0, "waiting": 1.0}, {}), CacheConfig(capacity_tokens=1000), streams=False)
    assert read == Poll(2.0, 1.0, None, None, True)


def test_the_polls_with_the_largest_batch_are_none_where_they_are_too_few_to_say_anything():
    largest, smaller = [waits(ROOM)] * MIN_PEAK_POLLS, [waits(FULL)._replace(running=2.0)] * 9
    assert at_peak([*smaller, *largest]) == largest
    assert at_peak([*smaller, *largest[1:]]) == []
