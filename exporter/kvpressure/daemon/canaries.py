"""The requests of one token: never more than one under way to an engine, and none at all unless switched on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Final

import structlog

from kvpressure.config.settings import CanarySettings
from kvpressure.config.settings.load import Loaded
from kvpressure.config.target import Target
from kvpressure.engines.canary import AskedEngine, CanarySource
from kvpressure.model.samples import CanaryReport, CanaryResult
from kvpressure.model.view import EngineKey
from kvpressure.net.schedule import Clock
from kvpressure.net.waiting import cancel
from kvpressure.runtimes.registry import named
from kvpressure.signals.canary import CanaryTimes, CanaryWanted

log: Final = structlog.get_logger("kvpressure.daemon.canaries")

MAX_UNDER_WAY: Final = 128
MAX_OF_ONE_TARGET: Final = 8
"""Each holds a connection for as long as half a minute: a page that invents engines must not take them all."""

OnSent = Callable[[EngineKey, float], None]
OnReport = Callable[[EngineKey, CanaryReport], None]


def canary_times(loaded: Loaded) -> CanaryTimes | None:
    """When to send by these settings; None where no canary is sent."""
    settings, limits = loaded.settings.engines.canary, loaded.thresholds
    if not settings.enabled:
        return None
    return CanaryTimes(
        stalled_seconds=limits.stuck_frozen_min_seconds,
        idle_seconds=settings.idle_seconds,
        interval_seconds=settings.interval_seconds,
        deadline_seconds=limits.stuck_unanswered_min_seconds,
    )


class Canaries:
    """Sends the canaries that are due, `on_sent` before and `on_report` after each."""

    def __init__(self, clock: Clock, on_sent: OnSent, on_report: OnReport) -> None:
        self._clock = clock
        self._on_sent = on_sent
        self._on_report = on_report
        self._sources: dict[EngineKey, tuple[AskedEngine, float, CanarySource]] = {}
        self._tasks: dict[EngineKey, asyncio.Task[None]] = {}
        self._told: dict[EngineKey, CanaryResult] = {}

    def ask(
        self, wanted: Iterable[CanaryWanted], engines: Container[EngineKey], targets: Iterable[Target], loaded: Loaded
    ) -> None:
        """Send a request to each that has none under way, as far as the bounds allow; the others at a later call.

        What is known of those that are not among `engines` any more, or whose target is gone or changed, is given up.
        """
        times = canary_times(loaded)
        by_name = {target.name: target for target in targets}
        self._give_up(engines, by_name if times is not None else {})
        if times is None:
            return
        for one in wanted:
            target = by_name.get(one.key.target)
            if target is not None and self._may_ask(one.key):
                asked = _asked(one, target, loaded.settings.engines.canary)
                source = self._source(one.key, asked, times.deadline_seconds)
                self._on_sent(one.key, self._clock.wall())
                task = asyncio.get_running_loop().create_task(
                    self._run(one.key, source), name=f"canary {one.key.target}"
                )
                self._tasks[one.key] = task
                task.add_done_callback(partial(self._ended, one.key))

    def _ended(self, key: EngineKey, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]

    async def stop(self) -> None:
        """End every request."""
        await cancel(self._tasks.values())
        self._tasks.clear()

    def _may_ask(self, key: EngineKey) -> bool:
        if key in self._tasks or len(self._tasks) >= MAX_UNDER_WAY:
            return False
        return sum(other.target == key.target for other in self._tasks) < MAX_OF_ONE_TARGET

    def _give_up(self, engines: Container[EngineKey], targets: Mapping[str, Target]) -> None:
        for key, (asked, _, _) in list(self._sources.items()):
            if key not in engines or targets.get(key.target) != asked.target:
                del self._sources[key]
                self._told.pop(key, None)
                if (task := self._tasks.get(key)) is not None:
                    task.cancel()

    def _source(self, key: EngineKey, asked: AskedEngine, deadline_seconds: float) -> CanarySource:
        known = self._sources.get(key)
        if known is None or known[:2] != (asked, deadline_seconds):
            known = asked, deadline_seconds, CanarySource(asked, self._clock, deadline_seconds=deadline_seconds)
            self._sources[key] = known
        return known[2]

    async def _run(self, key: EngineKey, source: CanarySource) -> None:
        sent = self._clock.wall()
        try:
            report = await source.ask()
            self._tell(key, report)
        except Exception:
            # Whatever is wrong with asking is no reason to stop polling, nor evidence.
            log.exception("a request of one token failed; please report this", target=key.target)
            text = "a request of one token could not be sent"
            report = CanaryReport(sent, self._clock.wall(), CanaryResult.ERROR, None, text)
        self._on_report(key, report)

    def _tell(self, key: EngineKey, report: CanaryReport) -> None:
        """One log line per change of how it ends; none for a first answer."""
        before, self._told[key] = self._told.get(key, CanaryResult.ANSWERED), report.result
        if before is not report.result:
            tell = log.info if report.result is CanaryResult.ANSWERED else log.warning
            tell(
                "engine asked for one token",
                target=key.target,
                engine=key.rank,
                result=report.result.value,
                said=report.text,
            )


def _asked(wanted: CanaryWanted, target: Target, settings: CanarySettings) -> AskedEngine:
    # Whoever may create a pod would get the key: a target with a container was found by discovery.
    key = None if target.container else settings.api_key_file
    rank = wanted.key.rank if wanted.several else None
    return AskedEngine(target, wanted.key.model_name, named(wanted.runtime).asking, rank, key)
