import pytest

from kvpressure.net.schedule import GROUPS, SystemClock, Ticks, backoff_ticks, default_deadline_seconds, spread


def test_targets_are_spread_over_the_interval_and_keep_their_place_after_a_restart():
    places = sorted(spread(f"ns/pod-{n}:8000") for n in range(64))
    gaps = [b - a for a, b in zip(places, [*places[1:], places[0] + 1], strict=True)]
    assert max(gaps) <= 1 / GROUPS
    assert len(set(places)) == GROUPS, "what is asked together costs less"
    assert spread("ns/pod-0:8000") == 0.5


@pytest.mark.parametrize("interval", [0.2, 1.0, 60.0])
def test_the_upcoming_tick_is_never_in_the_past_and_never_more_than_an_interval_away(interval: float):
    ticks = Ticks(interval, 0.3)
    for now in (0.0, 1234.56789, 1e6 + 0.3 * interval):
        due = ticks.due(ticks.upcoming(now))
        assert now - 1e-6 <= due <= now + interval + 1e-6


def test_the_deadline_is_below_the_interval_and_never_long():
    assert default_deadline_seconds(0.2) == pytest.approx(0.16)
    assert default_deadline_seconds(1.0) == pytest.approx(0.8)
    assert default_deadline_seconds(60.0) == 10.0


def test_the_back_off_doubles_up_to_five_seconds_between_attempts():
    waits = [1 + backoff_ticks(failures, 1.0) for failures in range(1, 8)]
    assert waits == [1, 2, 4, 5, 5, 5, 5]


def test_a_long_interval_is_never_made_longer_by_backing_off():
    assert {backoff_ticks(failures, 30.0) for failures in range(2000)} == {0}


async def test_the_real_clock_moves_forward_and_does_not_sleep_for_a_time_that_has_passed():
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep_until(before - 100)
    await clock.sleep_until(clock.monotonic() + 0.01)
    assert clock.monotonic() >= before + 0.01
    assert clock.wall() > 1.7e9
