"""Starts the sources, feeds the pipeline, makes a snapshot every second, and reloads the settings."""

from __future__ import annotations

import asyncio
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog

from kvpressure import __version__, logs
from kvpressure.config.settings import ConfigError, Settings
from kvpressure.config.settings.load import Loaded, load
from kvpressure.daemon.feeds import Feeds
from kvpressure.daemon.node_sources import SOURCES
from kvpressure.daemon.recommended import Advised, Recommender, make_actions
from kvpressure.engines.targets import TargetSet, changes_between
from kvpressure.exposition import Snapshot
from kvpressure.exposition.profile import Profile
from kvpressure.model.action import Action
from kvpressure.model.environment import Environment
from kvpressure.model.errors import TimedOutError
from kvpressure.model.samples import NOT_READ_REASON, SourceHealth
from kvpressure.model.view import EngineView
from kvpressure.net.files import FileWatch
from kvpressure.net.schedule import Clock, SystemClock
from kvpressure.signals.history import Histories
from kvpressure.sources.gpu.backend import ABSENT_REASONS, CrashedError
from kvpressure.sources.gpu.process import DetachedError, GpuFactory, registration

TICK_SECONDS = 1.0
MAX_SNAPSHOT_AGE_SECONDS = 5.0
"""With an older snapshot the exporter is not ready: its event loop hangs."""

HUNG = (TimedOutError.reason, CrashedError.reason)
"""Errors of a GPU source with which the exporter is not ready: the driver hangs, or crashes the child that calls it."""

log = structlog.get_logger("kvpressure.daemon.exporter")


class Daemon:
    """The running exporter, without its HTTP server.

    `read_settings` is called at every reload. `snapshot` returns at once.
    """

    def __init__(
        self,
        loaded: Loaded,
        read_settings: Callable[[], Settings],
        gpus: GpuFactory | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._loaded = loaded
        self._read_settings = read_settings
        self._clock = clock or SystemClock()
        others = (source for source in SOURCES if not source.gives_gpus)
        registered = SOURCES if gpus is None else (registration(gpus), *others)
        self._feeds = Feeds(loaded.settings, loaded.thresholds, self._clock, registered)
        self._histories = Histories()
        self._advised = Advised()
        self._recommender = Recommender(self.advice, self._advised.steps)
        self._targets = TargetSet(loaded.settings, discovers=self._feeds.node.discovers)
        self._rejected_before: Counter[str] = Counter()
        self._reload_ok = True
        self._reloaded_at = self._clock.wall()
        self._reload_requested = asyncio.Event()
        self._watch = FileWatch(loaded.settings.watched_files)
        self._gpu_health: tuple[SourceHealth, ...] = ()
        self._health_log = HealthLog(log)
        self._other_families: Callable[[], Mapping[str, object]] = dict
        self._snapshot = Snapshot(self._clock.wall())

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._loaded.settings

    @property
    def discovers(self) -> bool:
        """Whether engines are discovered among the pods of this node."""
        return self._feeds.node.discovers

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot; the same object until the next tick."""
        return self._snapshot

    def advice(self, view: EngineView) -> tuple[Action, ...]:
        """Return what to do about one engine; empty while it has no diagnosis or nothing is wrong."""
        engines, thresholds = self._snapshot.engines, self._loaded.thresholds
        model = view.key.model_name, view.namespace
        replicas = {other.key.target for other in engines if (other.key.model_name, other.namespace) == model}
        target = next((target for target in self._targets.targets if target.name == view.key.target), None)
        make = partial(make_actions, target=target, engines=engines, thresholds=thresholds)
        return self._advised.advice(view, thresholds, len(replicas), make)

    def not_ready(self) -> list[str]:
        """Return why the exporter is not ready: it makes no snapshots, or a GPU driver hangs or crashes."""
        age = self._clock.wall() - self._snapshot.t
        reasons = [f"no snapshot for {age:.0f} s"] if age > MAX_SNAPSHOT_AGE_SECONDS else []
        hung = [health for health in self._gpu_health if not health.up and health.reason in HUNG]
        return reasons + [f"{health.source}: {health.error}" for health in hung]

    def register_collector(self, families: Callable[[], Mapping[str, object]]) -> None:
        """Export these families too; `families` is called at every tick."""
        self._other_families = families

    def request_reload(self) -> None:
        """Read the settings again at the next tick."""
        self._reload_requested.set()

    def detach_gpus(self) -> None:
        """Release the GPU drivers for a while."""
        log.info("releasing the GPU drivers")
        self._feeds.node.detach()

    async def run(self) -> None:
        """Run all sources until cancelled; everything it started has ended when this returns."""
        self._feeds.node.start()
        try:
            next_tick = self._clock.monotonic()
            while True:
                await self._tick()
                next_tick = max(next_tick + TICK_SECONDS, self._clock.monotonic())
                await self._clock.sleep_until(next_tick)
        finally:
            await self._feeds.stop()

    async def _tick(self) -> None:
        now = self._clock.wall()
        changed = await asyncio.to_thread(self._watch.look)
        if changed or self._reload_requested.is_set():
            self._reload_requested.clear()
            await self._reload()
        self._targets.discovered(self._feeds.node.targets)
        if self._targets.is_due(now):
            changes = await asyncio.to_thread(self._targets.refresh, now)
            await self._feeds.fleet.apply(changes)
            self._feeds.pipeline.forget(target.name for target in changes.removed)
        self._feeds.pipeline.expire(now)
        environment = self._feeds.node.snapshot(self._targets.targets, [view.sample for view in self._snapshot.gpus])
        held_back = (*self._targets.problems, *self._feeds.pipeline.problems)
        environment = replace(environment, problems=(*environment.problems, *held_back))
        self._feeds.pipeline.set_environment(now, environment)
        self._gpu_health = self._feeds.node.gpu_health()
        self._snapshot = self._make_snapshot(now, environment)
        self._recommender.start_next(time.monotonic(), self._snapshot.engines, self._loaded.thresholds)
        self._histories.add(now, self._snapshot.engines, self._snapshot.gpus, self._snapshot.silent)
        self._health_log.write((*self._feeds.node.unlogged_health(), *self._targets.health))

    async def _reload(self) -> None:
        try:
            loaded = await asyncio.to_thread(load, self._read_settings)
        except ConfigError as error:
            self._reload_ok = False
            for problem in error.problems:
                log.error("new settings refused, the old ones stay in force", problem=str(problem))
            return
        before, self._loaded = self._loaded, loaded
        self._watch = FileWatch(loaded.settings.watched_files)
        await self._apply(before)
        self._reload_ok, self._reloaded_at = True, self._clock.wall()
        log.info("settings reloaded", thresholds=loaded.thresholds.hash)
        if before.settings.web != loaded.settings.web or before.settings.log != loaded.settings.log:
            log.warning("changes under web and log take effect at the next start")

    async def _apply(self, before: Loaded) -> None:
        old, new = before.settings, self.settings
        self._feeds.judge_by(old, new, self._loaded.thresholds)
        discovered = self._feeds.node.discovers
        await self._feeds.node.reload(new)
        targets_differ = (old.engines, old.poll, old.limits) != (new.engines, new.poll, new.limits)
        if targets_differ or discovered != self._feeds.node.discovers:
            await self._change_targets(restart=old.poll != new.poll)

    async def _change_targets(self, *, restart: bool) -> None:
        """Poll the targets of the new settings; unchanged targets keep running unless `restart`."""
        self._rejected_before.update(self._targets.rejected)
        old = {target.name: target for target in self._targets.targets}
        self._targets = TargetSet(self.settings, discovers=self._feeds.node.discovers)
        self._targets.discovered(self._feeds.node.targets)
        await asyncio.to_thread(self._targets.refresh, self._clock.wall())
        new = {target.name: target for target in self._targets.targets}
        if restart:
            await self._feeds.fleet.restart(self.settings, new.values())
        else:
            await self._feeds.fleet.apply(changes_between(old, new))
        self._feeds.pipeline.forget(old.keys() - new.keys())

    def _make_snapshot(self, now: float, environment: Environment) -> Snapshot:
        sources = (*self._gpu_health, *self._targets.health, *self._feeds.node.health())
        return Snapshot(
            t=now,
            engines=self._recommender.marked(self._feeds.pipeline.engine_views(now)),
            silent=self._feeds.pipeline.silent_views(now),
            gpus=self._feeds.pipeline.gpu_views(now),
            sources=(*self._feeds.fleet.health(), *sources),
            exporter=self._own_families(environment),
            histories=self._histories,
            environment=environment,
            source_names=self._feeds.node.names,
            targets=self._targets.targets,
            profile=Profile(self._loaded.settings.exposition.profile),
        )

    def _lists_all(self) -> bool:
        return self._targets.listed and self._feeds.node.listed

    def _own_families(self, environment: Environment) -> Mapping[str, object]:
        totals = self._feeds.fleet.totals()
        caps = Counter(self._feeds.pipeline.caps_reached)
        rejected = Counter(self._targets.rejected) + self._rejected_before
        caps["targets"] += rejected.get("too_many_targets", 0)
        others = self._other_families()
        reload_ok = self._reload_ok and others.get("config_last_reload_successful", 1.0) == 1.0
        return {
            **others,
            "build_info": {__version__: {platform.python_version(): 1.0}},
            "targets": float(len(self._targets.targets)) if self._lists_all() else None,
            "thresholds_info": {self._loaded.thresholds.hash: 1.0},
            "config_last_reload_successful": float(reload_ok),
            "config_last_reload_success_timestamp_seconds": self._reloaded_at,
            "engine_page_bytes_total": totals["bytes_received"],
            "polls_skipped_total": totals["missed"],
            "log_lines_dropped_total": float(logs.dropped()),
            "samples_rejected_total": self._feeds.pipeline.rejected or None,
            "node_memory_pressure": None if environment.memory_pressure is None else float(environment.memory_pressure),
            "cpu_pressure_ratio": None if environment.host is None else environment.host.cpu_pressure_ratio,
            "caps_reached_total": {cap: float(caps[cap]) for cap in ("engines", "targets", "new_label_sets")},
        }


_EXPECTED: Final = (*ABSENT_REASONS, DetachedError.reason, NOT_READ_REASON)


class HealthLog:
    """Writes one line to `log` per change of state of a source."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._states: dict[tuple[str, str], tuple[bool, str]] = {}

    def write(self, sources: Sequence[SourceHealth]) -> None:
        """Log the sources whose state differs from the last call."""
        known = {(health.source, health.target) for health in sources}
        self._states = {key: state for key, state in self._states.items() if key in known}
        for health in sources:
            key, state = (health.source, health.target), (health.up, health.reason)
            if self._states.get(key) == state or health.reason == "pending":
                continue
            self._states[key] = state
            write = self._log.info if health.up or health.reason in _EXPECTED else self._log.warning
            write(
                _event(health),
                source=health.source,
                target=health.target,
                error=health.error,
            )


def _event(health: SourceHealth) -> str:
    if health.up:
        return "source up"
    return "source not present" if health.absent else "source not read" if health.not_read else "source down"
