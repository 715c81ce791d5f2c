"""The budget of all sources: what one may take, whatever the others take, and how work is cut."""

import threading
import time

import pytest

from kvpressure.model.errors import SourceError
from kvpressure.net import budget as module
from kvpressure.net.budget import Budget
from kvpressure.net.guard import Guard
from kvpressure.promtext.lines import Steps


@pytest.fixture(autouse=True)
def now(monkeypatch) -> list[float]:
    """A clock that stands still until it is set."""
    at = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: at[0])
    return at


def busy(seconds: float) -> Steps[str]:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        yield
    return "done"


def test_all_sources_together_may_take_a_fifth_of_a_core_and_each_keeps_a_part(now: list[float]):
    budget = Budget()
    flooded, quiet = budget.share("flooded"), budget.share("quiet")
    flooded.charge(10.0)
    assert not flooded.allows()
    assert quiet.allows(), "its own part is left"
    quiet.charge(0.1)
    assert not quiet.allows()
    now[0] = 5.0
    assert quiet.allows()
    assert not flooded.allows()
    now[0] = 60.0
    assert flooded.allows()
    assert budget.share("quiet") is quiet


def test_a_feed_may_work_less_than_it_may_read(now: list[float]):
    source = Budget().share("kv_events")
    one, other = source.feed(), source.feed()
    one.charge(0.2)
    assert one.allows()
    assert not one.allows_work()
    assert other.allows_work()
    now[0] = 10.0
    assert one.allows_work()


def test_work_ends_with_its_result_or_once_nothing_is_left():
    share = Budget().share("x")
    assert share.work(busy(0.05)) == "done"
    began = time.thread_time()
    with pytest.raises(SourceError) as caught:
        share.work(busy(60.0))
    assert caught.value.reason == "over_budget"
    assert 0.4 < time.thread_time() - began < 1.0
    with pytest.raises(SourceError):
        share.work(busy(60.0))


def test_one_source_works_at_a_time():
    budget, at_once, most = Budget(), [0], [0]

    def steps() -> Steps[None]:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        yield from busy(0.03)
        at_once[0] -= 1

    threads = [threading.Thread(target=budget.share(str(n)).work, args=(steps(),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1]


async def test_a_source_without_anything_left_is_not_read_and_says_so():
    share = Budget().share("x")
    guard = Guard[int]("gateway", "a", interval_seconds=1.0, share=share)

    async def read() -> int:
        return 1

    assert await guard.attempt(read) == 1
    share.charge(10.0)
    assert await guard.attempt(read) is None
    assert guard.health().errors == {"over_budget": 1}
    assert "20% of a core" in guard.health().error
