import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from kvpressure.model.errors import DnsError, RefusedConnectionError, SourceError, TimedOutError
from kvpressure.net.guard import Guard
from kvpressure.net.schedule import spread
from tests.support.engine_kit import VirtualClock, settle

READ = Callable[[], Awaitable[int]]


def guard(clock: VirtualClock, **kwargs: object) -> Guard[int]:
    return Guard("engine", "a", **({"interval_seconds": 1.0, "clock": clock} | kwargs))  # type: ignore[arg-type]


async def gives_one() -> int:
    return 1


def fails(error: type[SourceError] = RefusedConnectionError, sentence: str = "it refused") -> READ:
    async def read() -> int:
        raise error(sentence)

    return read


@asynccontextmanager
async def running(of: Guard[int], read: READ, values: list[int]) -> AsyncIterator[None]:
    task = asyncio.create_task(of.run(read, values.append))
    try:
        await settle()
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_before_the_first_attempt_a_source_is_pending_and_nothing_has_failed():
    health = guard(VirtualClock()).health()
    assert (health.up, health.reason, health.error) == (False, "pending", "not polled yet")
    assert (health.last_success, dict(health.errors)) == (None, {})
    assert math.isnan(health.duration_seconds)


async def test_a_reading_makes_the_source_up_with_its_time_and_duration():
    clock = VirtualClock(now=10.0)

    async def takes_a_quarter() -> int:
        clock.now += 0.25
        return 7

    of = guard(clock)
    assert await of.attempt(takes_a_quarter) == 7
    health = of.health()
    assert (health.up, health.error, health.reason) == (True, "", "")
    assert (health.duration_seconds, health.t, health.last_success) == (0.25, clock.wall(), clock.wall())


async def test_failures_are_counted_by_reason_and_the_last_success_is_remembered():
    of = guard(VirtualClock(now=10.0))
    await of.attempt(gives_one)
    for read in (fails(), fails(TimedOutError, "too slow"), fails()):
        assert await of.attempt(read) is None
    health = of.health()
    assert (health.up, health.reason, health.error) == (False, "refused", "it refused")
    assert health.errors == {"refused": 2, "timeout": 1}
    assert health.last_success == 1.8e9 + 10.0


async def test_counts_outlive_a_recovery():
    of = guard(VirtualClock())
    await of.attempt(fails(DnsError))
    await of.attempt(gives_one)
    assert of.health().up
    assert of.health().errors == {"dns": 1}


async def test_a_reading_that_hangs_is_cut_at_the_deadline():
    of = guard(VirtualClock(), deadline_seconds=0.01)
    assert await of.attempt(asyncio.Event().wait) is None  # type: ignore[arg-type]
    assert of.health().reason == "timeout"
    assert "0.01 s" in of.health().error


async def test_a_bug_in_a_source_is_that_sources_failure_and_is_logged_with_its_traceback():
    async def bug() -> int:
        return {}["missing"]

    of = guard(VirtualClock())
    with capture_logs() as logs:
        assert await of.attempt(bug) is None
    assert of.health().errors == {"internal": 1}
    assert isinstance(logs[0]["exc_info"], KeyError)


async def test_a_receiver_that_fails_does_not_end_the_polling():
    def broken(_: int) -> None:
        raise RuntimeError("window full")

    of = guard(VirtualClock())
    assert await of.attempt(gives_one, broken) is None
    assert (of.health().reason, of.health().error) == ("internal", "RuntimeError: window full; please report this")


async def test_only_changes_of_state_are_logged():
    of = guard(VirtualClock())
    with capture_logs() as logs:
        for read in (gives_one, gives_one, fails(), fails(TimedOutError), fails(), gives_one, gives_one):
            await of.attempt(read)
    assert [(line["event"], line["log_level"], line.get("reason")) for line in logs] == [
        ("source up", "info", None),
        ("source down", "warning", "refused"),
        ("source up", "info", None),
    ]


async def test_ticks_are_a_fixed_grid_and_none_is_lost_when_readings_are_fast():
    clock, values = VirtualClock(), []
    of, began = guard(clock), []

    async def read() -> int:
        began.append(clock.now)
        clock.now += 0.3
        return len(began)

    async with running(of, read, values):
        await clock.advance(20)
    assert values == list(range(1, 21))
    assert {round((at - spread("a")) % 1.0, 6) % 1.0 for at in began} == {0.0}
    assert (of.counts.polls, of.counts.late, of.counts.missed) == (20, 0, 0)


async def test_ticks_that_passed_during_a_slow_reading_are_skipped_and_counted_not_bunched():
    clock, values = VirtualClock(), []
    of = guard(clock)

    async def slow() -> int:
        clock.now += 3.4
        return 1

    async with running(of, slow, values):
        await clock.advance(3.9)
    assert (of.counts.polls, of.counts.missed) == (1, 3)


async def test_a_tick_that_begins_late_is_counted():
    clock = VirtualClock()
    of = guard(clock)
    async with running(of, gives_one, []):
        clock.now += 1.7
        await clock.advance(0)
    assert of.counts.late == 1


async def test_ticks_sat_out_while_backing_off_are_not_missed_ones():
    clock = VirtualClock()
    of = guard(clock)
    async with running(of, fails(TimedOutError), []):
        await clock.advance(22)
    # 0, 1, 3, 7, 12, 17, then every five seconds
    assert of.counts.polls == 6
    assert of.counts.missed == 0


async def test_cheap_failures_are_retried_at_every_tick():
    clock = VirtualClock()
    of = guard(clock)
    async with running(of, fails(), []):
        await clock.advance(22)
    assert (of.counts.polls, of.counts.missed) == (22, 0)


async def test_the_first_reading_of_a_slow_source_comes_within_a_second():
    clock, values = VirtualClock(), []
    of = guard(clock, interval_seconds=60.0)
    async with running(of, gives_one, values):
        await clock.advance(1.0)
        assert values == [1]
        await clock.advance(120.0)
    assert values == [1, 1, 1]


async def test_cancelling_ends_the_run_at_once():
    task = asyncio.create_task(guard(VirtualClock()).run(asyncio.Event().wait, print))  # type: ignore[arg-type]
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_first_attempt_that_hangs_is_said_to_get_no_answer() -> None:
    clock = VirtualClock()
    of = guard(clock, deadline_seconds=60.0)
    task = asyncio.create_task(of.attempt(asyncio.Event().wait))  # type: ignore[arg-type]
    await settle()
    assert of.health().error == "not polled yet"
    clock.now += 9.0
    assert of.health().error == "no answer for 9 s: it hangs, or something drops packets"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
