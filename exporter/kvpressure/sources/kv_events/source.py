"""KV events of the targets that are set up for it: which blocks each engine evicted, and had to compute again."""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from kvpressure.config.settings.polling import KvEventsSettings
from kvpressure.config.target import Target
from kvpressure.model.environment import Environment
from kvpressure.model.errors import SourceError
from kvpressure.model.kv_events import KvEvents
from kvpressure.model.samples import SourceHealth
from kvpressure.net.budget import BUDGET
from kvpressure.net.guard import Guard
from kvpressure.net.schedule import Clock
from kvpressure.net.waiting import cancel
from kvpressure.sources.kv_events.memory import Memory
from kvpressure.sources.source import Known, Registration, Source

if TYPE_CHECKING:
    from kvpressure.sources.kv_events.feed import Feed

NAME: Final = "kv_events"
INTERVAL_SECONDS: Final = 1.0
GREETED_WITHIN_SECONDS: Final = 0.3
"""Before the first look: most have greeted by then."""
MAX_FEEDS: Final = 64
"""Ranks that are followed at most: a thread each."""
AMBIGUOUS: Final = "several engines are said to publish at {}, and whose events come from there is not known"


class AmbiguousError(SourceError, reason="ambiguous"):
    """Several targets have the same publisher."""


class ConnectingError(SourceError, reason="connecting"):
    """The publisher has not greeted yet."""


class _Key(NamedTuple):
    """A rank of a target. `shared`: another one is said to publish at the same address."""

    name: str
    url: str
    settings: KvEventsSettings
    rank: int
    shared: bool = False

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return self.settings.port + self.rank


class KvEventsSource(Source):
    """A thread for each rank of the targets whose settings have `kv_events`; none, and no library, without any."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._memory = Memory()
        self._followed: dict[_Key, _Followed] = {}
        self._keys: tuple[_Key, ...] = ()
        self._changed = asyncio.Event()
        self._tasks: dict[_Key, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Follow the known ranks until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._follow()
        finally:
            for followed in self._followed.values():
                followed.stop()
            await cancel(self._tasks.values())

    def health(self) -> tuple[SourceHealth, ...]:
        """Return one record for each rank."""
        return tuple(followed.guard.health() for followed in self._followed.values())

    def facts(self, known: Known) -> Environment:
        """Return what the events have reported, by target; from now on of the targets that are known."""
        keys = tuple(_keys(known.targets))[:MAX_FEEDS]
        if keys != self._keys:
            self._keys = keys
            self._changed.set()
        return Environment(kv_events=self._reports())

    def _reports(self) -> Mapping[str, tuple[KvEvents, ...]]:
        reports: dict[str, tuple[KvEvents, ...]] = {}
        for key, followed in self._followed.items():
            if (report := followed.report) is not None:
                reports[key.name] = (*reports.get(key.name, ()), report)
        return reports

    async def _follow(self) -> None:
        gone = self._followed.keys() - set(self._keys)
        for key in gone:
            self._followed.pop(key).stop()
        await cancel(self._tasks.pop(key) for key in gone)
        for key in self._keys:
            if key not in self._followed:
                followed = self._followed[key] = _Followed(key, self._memory, self._clock)
                self._tasks[key] = asyncio.get_running_loop().create_task(followed.run(), name=f"{NAME} {key.name}")


class _Followed:
    """One rank: the thread that reads, and the guard that checks it every second."""

    def __init__(self, key: _Key, memory: Memory, clock: Clock | None) -> None:
        self._key, self._memory = key, memory
        self._feed: Feed | None = None
        target = key.name if key.settings.ranks == 1 else f"{key.name} rank {key.rank}"
        self.guard = Guard[None](NAME, target, interval_seconds=INTERVAL_SECONDS, clock=clock)

    @property
    def report(self) -> KvEvents | None:
        return None if self._feed is None or self._feed.error is not None else self._feed.report

    async def run(self) -> None:
        await self.guard.run(self._look, lambda _: None)

    async def _look(self) -> None:
        if self._key.shared:
            raise AmbiguousError(AMBIGUOUS.format(f"{self._key.host}:{self._key.port}"))
        if self._feed is None:
            self._feed = _feed(self._key, self._memory)
            self._feed.start()
            await asyncio.sleep(GREETED_WITHIN_SECONDS)
        if (error := self._feed.error) is not None:
            raise error
        if self._feed.report is None:
            raise ConnectingError("the publisher has not greeted yet")

    def stop(self) -> None:
        if self._feed is not None:
            self._feed.stop()


def _keys(targets: Sequence[Target]) -> Iterator[_Key]:
    keys = [
        _Key(target.name, target.url, target.kv_events, rank)
        for target in targets
        if target.kv_events is not None
        for rank in range(target.kv_events.ranks)
    ]
    claims = Counter((key.host, key.port) for key in keys)
    return (key._replace(shared=claims[key.host, key.port] > 1) for key in keys)


def _feed(key: _Key, memory: Memory) -> Feed:
    """Return the feed of a rank."""
    feed = importlib.import_module("kvpressure.sources.kv_events.feed")  # only here, for it loads msgspec
    settings, rank = key.settings, key.rank
    replay = None if settings.replay_port is None else settings.replay_port + rank
    share = BUDGET.share(NAME).feed()
    made: Feed = feed.Feed(feed.Address(key.host, key.port, replay, settings.topic, rank), share, memory)
    return made


SOURCE: Final = Registration[None](
    NAME,
    lambda _, wiring: [KvEventsSource(wiring.clock)],
    {NAME: "KV events of engines"},
)
