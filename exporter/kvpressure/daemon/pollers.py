"""The tasks that poll engines: one per target, started and ended as targets change."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from kvpressure.config.settings import Settings
from kvpressure.config.target import Target
from kvpressure.engines.engine import EngineSource, PollNames
from kvpressure.engines.reader import PageReader
from kvpressure.engines.targets import Changes
from kvpressure.model.samples import EnginePage, SourceHealth
from kvpressure.net.schedule import Clock
from kvpressure.net.waiting import cancel
from kvpressure.promtext.scanner import Memory
from kvpressure.runtimes.registry import RUNTIMES, TABLES
from kvpressure.runtimes.table import Table


def tables_of(target: Target) -> tuple[Table, ...]:
    """Return the tables for a target's pages: of its runtime where that is set, else all."""
    return tuple(runtime.table for runtime in RUNTIMES if runtime.name == target.runtime) or TABLES


def poll_names(tables: Sequence[Table]) -> PollNames:
    """Return the names to request: those of all `tables` until a page has shown its runtime."""
    own = {table.runtime: PollNames(table.poll_names(), table.all_names()) for table in tables}
    return PollNames(_union(names.poll for names in own.values()), _union(names.full for names in own.values()), own)


def _union(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for some in names for name in some))


class EngineFleet:
    """One polling task per target."""

    def __init__(self, settings: Settings, clock: Clock, on_page: Callable[[Target, EnginePage], None]) -> None:
        self._settings = settings.poll
        self._clock = clock
        self._on_page = on_page
        self._memory = Memory()
        self._running: dict[str, tuple[EngineSource, asyncio.Task[None]]] = {}
        self._gone: Counter[str] = Counter()
        self._before: dict[str, SourceHealth] = {}

    async def apply(self, changes: Changes) -> None:
        """End the tasks of removed and changed targets, start those of new and changed ones."""
        await self._end([target.name for target in (*changes.removed, *changes.changed)])
        for target in (*changes.changed, *changes.added):
            tables = tables_of(target)
            reader = PageReader(tables, self._memory)
            source = EngineSource(target, reader, poll_names(tables), self._settings, self._clock)
            work = source.run(lambda page, target=target: self._on_page(target, page))  # type: ignore[misc]
            task = asyncio.get_running_loop().create_task(work, name=f"poll {target.name}")
            self._running[target.name] = source, task

    async def stop(self) -> None:
        """End every task."""
        await self._end(list(self._running))

    async def _end(self, names: list[str]) -> None:
        ended = {name: self._running.pop(name) for name in names if name in self._running}
        await cancel(task for _, task in ended.values())
        for name, (source, _) in ended.items():
            self._gone.update(_cost(source))
            self._before[name] = source.health()

    async def restart(self, settings: Settings, targets: Iterable[Target]) -> None:
        """Poll the targets anew with other settings; counts go on, and health until each is polled again."""
        await self.stop()
        self._settings = settings.poll
        await self.apply(Changes(added=tuple(targets)))

    def health(self) -> list[SourceHealth]:
        """Return the health of every target; of one that was just restarted, its health before."""
        source_healths = {name: source.health() for name, (source, _) in self._running.items()}
        self._before = {
            name: health
            for name, health in self._before.items()
            if source_healths.get(name, health).reason == "pending"
        }
        return [self._before.get(name, health) for name, health in source_healths.items()]

    def totals(self) -> Counter[str]:
        """Return `bytes_received` and polls `missed` over all targets, present and past."""
        totals = self._gone.copy()
        for source, _ in self._running.values():
            totals.update(_cost(source))
        return totals


def _cost(source: EngineSource) -> dict[str, int]:
    return {"bytes_received": source.bytes_received, "missed": source.counts.missed}
