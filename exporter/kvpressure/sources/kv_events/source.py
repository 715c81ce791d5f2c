"""KV events of the targets that are set up for it: which blocks each engine evicted, and had to compute again."""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from kvpressure.config.settings.polling import KvEventsSettings
from kvpressure.config.target import Target
from kvpressure.model.environment import Environment
from kvpressure.model.errors import SourceError
from kvpressure.model.kv_events import KvEvents
from kvpressure.model.samples import SourceHealth
from kvpressure.net.budget import BUDGET
from kvpressure.net.guard import Health
from kvpressure.net.schedule import Clock, SystemClock
from kvpressure.sources.kv_events.memory import Memory
from kvpressure.sources.source import Known, Registration, Source

if TYPE_CHECKING:
    from kvpressure.sources.kv_events.feed import Feed

NAME: Final = "kv_events"
MAX_FEEDS: Final = 64
"""Ranks that are followed at most: a thread each."""
AMBIGUOUS: Final = "several engines are said to publish at {}, and whose events come from there is not known"


class AmbiguousError(SourceError, reason="ambiguous"):
    """Several targets have the same publisher."""


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


@dataclass(slots=True)
class _Followed:
    """One rank: how reading it goes, and the thread that reads, None where its address is another's too."""

    health: Health
    feed: Feed | None
    error: SourceError | None = None
    """The one that was counted last."""


class KvEventsSource(Source):
    """A thread for each rank of the targets whose settings have `kv_events`; none, and no library, without any."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._memory = Memory()
        self._followed: dict[_Key, _Followed] = {}

    async def run(self) -> None:
        """Wait until cancelled: threads follow the ranks, from when their targets are known."""
        try:
            await asyncio.Event().wait()
        finally:
            self._follow(())

    def health(self) -> tuple[SourceHealth, ...]:
        """Return one record for each rank."""
        return tuple(followed.health.latest for followed in self._followed.values())

    def facts(self, known: Known) -> Environment:
        """Return what the events have reported, by target; from now on of the targets that are known."""
        self._follow(tuple(_keys(known.targets))[:MAX_FEEDS])
        reports: dict[str, tuple[KvEvents, ...]] = {}
        for key, followed in self._followed.items():
            if (report := self._report(followed)) is not None:
                reports[key.name] = (*reports.get(key.name, ()), report)
        return Environment(kv_events=reports)

    def _report(self, followed: _Followed) -> KvEvents | None:
        """Return the newest report, None while nothing is read; note how reading goes."""
        if (feed := followed.feed) is None:
            return None
        error, report = feed.error, feed.report
        if error is not None:
            if error is not followed.error:
                followed.health.down(self._clock.wall(), error)
            followed.error = error
            return None
        if report is not None:
            followed.health.up(self._clock.wall())
        return report

    def _follow(self, keys: Sequence[_Key]) -> None:
        for key in self._followed.keys() - set(keys):
            if (feed := self._followed.pop(key).feed) is not None:
                feed.stop()
        for key in keys:
            if key not in self._followed:
                self._followed[key] = self._begun(key)

    def _begun(self, key: _Key) -> _Followed:
        target = key.name if key.settings.ranks == 1 else f"{key.name} rank {key.rank}"
        health = Health(NAME, target, self._clock.wall(), "the publisher has not greeted yet")
        if key.shared:
            health.down(self._clock.wall(), AmbiguousError(AMBIGUOUS.format(f"{key.host}:{key.port}")))
            return _Followed(health, None)
        feed = _feed(key, self._memory)
        feed.start()
        return _Followed(health, feed)


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
    logged_by_exporter=True,
)
