"""The source: what is followed is what the targets say, and nothing is loaded or started without any."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from kvpressure.config.settings.polling import KvEventsSettings
from kvpressure.config.target import Target
from kvpressure.model.errors import SourceError
from kvpressure.sources.kv_events import source as module
from kvpressure.sources.kv_events.connection import HungUpError
from kvpressure.sources.kv_events.source import KvEventsSource
from kvpressure.sources.source import Known


class FakeFeed:
    """As `feed.Feed`, without a thread."""

    made: list[FakeFeed]

    def __init__(self, address, _share, _memory) -> None:
        self.address, self.started, self.stopped = address, False, False
        self.report: object = f"report of {address.port}"
        self.error: SourceError | None = None
        FakeFeed.made.append(self)

    def start(self) -> None:
        self.started = True

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def _fake(monkeypatch):
    from kvpressure.sources.kv_events import feed  # noqa: PLC0415

    FakeFeed.made = []
    monkeypatch.setattr(feed, "Feed", FakeFeed)


def target(name: str = "a", **settings) -> Target:
    return Target(name, "http://engine.example:8000", kv_events=KvEventsSettings(**settings))


@asynccontextmanager
async def running(*targets: Target):
    source = KvEventsSource()
    task = asyncio.create_task(source.run())
    await asyncio.sleep(0)
    source.facts(Known(targets))
    try:
        yield source
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert all(feed.stopped for feed in FakeFeed.made)


def of(port: int) -> FakeFeed:
    return next(one for one in FakeFeed.made if one.address.port == port)


async def test_without_a_target_that_says_so_nothing_is_followed():
    plain = Target("a", "http://engine.example:8000")
    async with running(plain) as source:
        await asyncio.sleep(0.05)
        assert not FakeFeed.made
        assert source.health() == ()
        assert source.facts(Known((plain,))).kv_events == {}


async def test_each_rank_is_followed_at_a_port_of_its_own():
    ranks = target(port=6000, replay_port=7000, topic="kv", ranks=2)
    async with running(ranks) as source:
        assert all(one.up for one in source.health())
        made = sorted((one.address for one in FakeFeed.made), key=lambda one: one.port)
        assert [(one.host, one.port, one.replay_port) for one in made] == [
            ("engine.example", 6000, 7000),
            ("engine.example", 6001, 7001),
        ]
        assert {one.target for one in source.health()} == {"a rank 0", "a rank 1"}
        assert source.facts(Known((ranks,))).kv_events == {"a": ("report of 6000", "report of 6001")}
        assert len(FakeFeed.made) == 2


async def test_a_target_that_is_gone_is_no_longer_followed_and_the_others_are_left_alone():
    async with running(target("a"), target("b", port=6000)) as source:
        source.facts(Known((target("b", port=6000),)))
        assert of(5557).stopped
        assert not of(6000).stopped
        assert [one.target for one in source.health()] == ["b"]


async def test_what_goes_wrong_is_the_health_of_that_target_and_its_report_is_gone():
    targets = target("a"), target("b", port=6000)
    async with running(*targets) as source:
        of(5557).error = HungUpError("engine.example:5557 has hung up")
        for _ in range(3):
            assert source.facts(Known(targets)).kv_events == {"b": ("report of 6000",)}
        assert [(one.up, one.reason) for one in source.health()] == [(False, "hung_up"), (True, "")]
        assert source.health()[0].errors == {"hung_up": 1}


async def test_of_engines_that_are_said_to_publish_at_one_address_none_is_read():
    async with running(target("a"), target("b"), target("c", port=6000)) as source:
        assert [one.reason for one in source.health()] == ["ambiguous", "ambiguous", ""]
        assert [feed.address.port for feed in FakeFeed.made] == [6000]
        source.facts(Known((target("a"), target("c", port=6000))))
        assert all(one.up for one in source.health())


async def test_no_more_are_followed_than_threads_may_be():
    async with running(*(target(str(number), port=6000 + number) for number in range(70))) as source:
        assert len(FakeFeed.made) == len(source.health()) == module.MAX_FEEDS
