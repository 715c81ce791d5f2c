"""Sends canaries: at most one at a time to an engine, and none unless they are enabled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Final

import structlog

from kvpressure.config.settings import CanarySettings
from kvpressure.config.settings.load import Loaded
from kvpressure.config.target import Target
from kvpressure.engines.canary import CanarySource, CanaryTarget
from kvpressure.model.samples import CanaryReport, CanaryResult
from kvpressure.model.view import EngineKey
from kvpressure.net.schedule import Clock
from kvpressure.net.waiting import cancel
from kvpressure.runtimes.registry import named
from kvpressure.signals.canary import CanaryTimes, CanaryWanted

log: Final = structlog.get_logger("kvpressure.daemon.canaries")

MAX_IN_FLIGHT: Final = 128
MAX_PER_TARGET: Final = 8
"""Each needs a connection for up to half a minute: a page that invents engines must not take them all."""

OnSent = Callable[[EngineKey, float], None]
OnReport = Callable[[EngineKey, CanaryReport], None]


def canary_times(loaded: Loaded) -> CanaryTimes | None:
    """Return when to send canaries, None where they are disabled."""
    settings, thresholds = loaded.settings.engines.canary, loaded.thresholds
    if not settings.enabled:
        return None
    return CanaryTimes(
        stalled_seconds=thresholds.progress.stuck_frozen_min_seconds,
        idle_seconds=settings.idle_seconds,
        interval_seconds=settings.interval_seconds,
        deadline_seconds=thresholds.progress.stuck_unanswered_min_seconds,
    )


class Canaries:
    """Sends the canaries that are due; calls `on_sent` before and `on_report` after each."""

    def __init__(self, clock: Clock, on_sent: OnSent, on_report: OnReport) -> None:
        self._clock = clock
        self._on_sent = on_sent
        self._on_report = on_report
        self._sources: dict[EngineKey, tuple[CanaryTarget, float, CanarySource]] = {}
        self._tasks: dict[EngineKey, asyncio.Task[None]] = {}
        self._logged: dict[EngineKey, CanaryResult] = {}

    def send(
        self, due: Iterable[CanaryWanted], engines: Container[EngineKey], targets: Iterable[Target], loaded: Loaded
    ) -> None:
        """Send a canary to each engine that is `due` and has none in flight, within the limits.

        Engines that are not in `engines`, or whose target was removed or changed, are forgotten.
        """
        times = canary_times(loaded)
        by_name = {target.name: target for target in targets}
        self._forget(engines, by_name if times is not None else {})
        if times is None:
            return
        for canary in due:
            key = canary.key
            target = by_name.get(key.target)
            if target is not None and self._may_send(key):
                engine = _canary_target(canary, target, loaded.settings.engines.canary)
                source = self._source(key, engine, times.deadline_seconds)
                self._on_sent(key, self._clock.wall())
                task = asyncio.get_running_loop().create_task(self._run(key, source), name=f"canary {key.target}")
                self._tasks[key] = task
                task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: EngineKey, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]

    async def stop(self) -> None:
        """End every request."""
        await cancel(self._tasks.values())
        self._tasks.clear()

    def _may_send(self, key: EngineKey) -> bool:
        if key in self._tasks or len(self._tasks) >= MAX_IN_FLIGHT:
            return False
        return sum(other.target == key.target for other in self._tasks) < MAX_PER_TARGET

    def _forget(self, engines: Container[EngineKey], targets: Mapping[str, Target]) -> None:
        for key, (engine, _, _) in list(self._sources.items()):
            if key not in engines or targets.get(key.target) != engine.target:
                del self._sources[key]
                self._logged.pop(key, None)
                if (task := self._tasks.get(key)) is not None:
                    task.cancel()

    def _source(self, key: EngineKey, engine: CanaryTarget, deadline_seconds: float) -> CanarySource:
        known = self._sources.get(key)
        if known is None or known[:2] != (engine, deadline_seconds):
            known = engine, deadline_seconds, CanarySource(engine, self._clock, deadline_seconds=deadline_seconds)
            self._sources[key] = known
        return known[2]

    async def _run(self, key: EngineKey, source: CanarySource) -> None:
        sent = self._clock.wall()
        try:
            report = await source.send()
            self._log_change(key, report)
        except Exception:
            # An error of ours must not end the polling, and is not evidence.
            log.exception("a request of one token failed; please report this", target=key.target)
            text = "a request of one token could not be sent"
            report = CanaryReport(sent, self._clock.wall(), CanaryResult.ERROR, None, text)
        self._on_report(key, report)

    def _log_change(self, key: EngineKey, report: CanaryReport) -> None:
        """Log a result that differs from the last one; not a first answer."""
        before, self._logged[key] = self._logged.get(key, CanaryResult.ANSWERED), report.result
        if before is not report.result:
            write = log.info if report.result is CanaryResult.ANSWERED else log.warning
            write(
                "canary sent",
                target=key.target,
                engine=key.rank,
                result=report.result.value,
                said=report.text,
            )


def _canary_target(canary: CanaryWanted, target: Target, settings: CanarySettings) -> CanaryTarget:
    # A target with a container was discovered: everybody who may create a pod would get the key.
    key = None if target.container else settings.api_key_file
    rank = canary.key.rank if canary.several else None
    return CanaryTarget(target, canary.key.model_name, named(canary.runtime).asking, rank, key)
