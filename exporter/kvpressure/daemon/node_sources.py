"""The sources beside the engines' pages: started and ended together, read as one `Environment`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kvpressure.config.settings import Settings, with_sections
from kvpressure.config.target import Target
from kvpressure.kubernetes import watch as kubernetes
from kvpressure.model.environment import Assignment, ContainerId, Environment
from kvpressure.model.plugins import exported
from kvpressure.model.samples import GpuSample, SourceHealth
from kvpressure.net.schedule import Clock
from kvpressure.net.waiting import cancel
from kvpressure.sources import gpu_exporter, host, logs, pod_devices, port_owner
from kvpressure.sources.gpu import process as gpu
from kvpressure.sources.gpu.backend import ABSENT_REASONS
from kvpressure.sources.pod_devices.assign import resolve
from kvpressure.sources.source import Known, OnReport, Registration, Source, Wiring, merged

_IN_ORDER: Final[tuple[Registration[Any], ...]] = (
    gpu.SOURCE,
    kubernetes.SOURCE,
    pod_devices.SOURCE,
    gpu_exporter.SOURCE,
    logs.SOURCE,
    host.SOURCE,
    port_owner.SOURCE,
)
"""Sources that others read from, each after those that it reads from."""

SOURCES: Final[tuple[Registration[Any], ...]] = (
    *_IN_ORDER,
    *(source for source in exported("kvpressure.sources", "SOURCE") if source not in _IN_ORDER),
)
"""All sources: each gets the facts of those before it, and health is shown in this order."""

NAMED_ENGINES: Final = 3
"""Engines that are named where several lack their GPUs for one reason."""


class NodeSources:
    """Runs one task per source; a source that is disabled, or has nothing to read here, ends or sleeps."""

    def __init__(
        self, settings: Settings, clock: Clock, on_gpus: OnReport, registered: Sequence[Registration[Any]] = SOURCES
    ) -> None:
        self._clock = clock
        self._on_gpus = on_gpus
        self._settings = settings
        self._registered = tuple(registered)
        self._sources: dict[str, Sequence[Source]] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        for each in self._registered:
            self._sources[each.name] = self._make(each)

    def start(self) -> None:
        """Start the sources that are not running."""
        loop = asyncio.get_running_loop()
        for name, sources in self._sources.items():
            if name not in self._tasks:
                self._tasks[name] = [loop.create_task(source.run(), name=name) for source in sources]

    async def reload(self, settings: Settings) -> None:
        """Restart the sources whose settings changed; the others keep running."""
        before, self._settings = self._settings, settings
        changed = [each for each in self._registered if _section(each, settings) != _section(each, before)]
        await cancel(task for each in changed for task in self._tasks.pop(each.name, ()))
        for each in changed:
            self._sources[each.name] = self._make(each)
        self.start()

    async def stop(self) -> None:
        """Stop every source."""
        await cancel(task for tasks in self._tasks.values() for task in tasks)

    def detach(self) -> None:
        """Release the GPU drivers for a while, so that they can be unloaded or MIG be changed."""
        for source in self._all():
            source.detach()

    @property
    def discovers(self) -> bool:
        """Whether engines are discovered on this node."""
        return any(source.discovers for source in self._all())

    @property
    def listed(self) -> bool:
        """Whether all engines of this node have been listed once, where they are discovered."""
        return all(source.listed for source in self._all() if source.discovers)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The discovered engines."""
        return tuple(target for source in self._all() for target in source.targets)

    @property
    def names(self) -> Mapping[str, str]:
        """The titles of the sources of the health records."""
        return {name: title for each in self._registered for name, title in each.names.items()}

    def gpu_health(self) -> tuple[SourceHealth, ...]:
        """Return the health of the GPU sources; of those that this machine lacks only where it lacks all."""
        source_healths = self._health(lambda source: source.gives_gpus)
        return tuple(health for health in source_healths if health.reason not in ABSENT_REASONS) or source_healths

    def health(self) -> tuple[SourceHealth, ...]:
        """Return the health of the other sources that are enabled."""
        return self._health(lambda source: not source.gives_gpus)

    def unlogged_health(self) -> tuple[SourceHealth, ...]:
        """Return the health of all sources that do not log their own changes of state."""
        source_healths = self._health(lambda source: source.logged_by_exporter)
        shown = {(health.source, health.target) for health in (*self.gpu_health(), *self.health())}
        return tuple(health for health in source_healths if (health.source, health.target) in shown)

    def snapshot(self, targets: Sequence[Target], gpus: Sequence[GpuSample]) -> Environment:
        """Return the facts of all sources; devices are named by the uuids of `gpus`, unknown devices are left out."""
        environment, discovers = Environment(), self.discovers
        for source in self._all():
            facts = source.facts(Known(targets, gpus, environment, discovers))
            environment = merged((environment, facts))
        # Processes before pods, whichever source came first.
        devices = dict(sorted(environment.devices.items(), key=lambda item: bool(item[0].pod)))
        configured = {target.name for target in targets if target.gpus is not None}
        problems = (*environment.problems, *_unresolved(devices, but=configured))
        return replace(environment, devices=_resolved(devices, gpus), problems=problems)

    def _all(self) -> Iterator[Source]:
        return (source for sources in self._sources.values() for source in sources)

    def _make(self, registered: Registration[Any]) -> Sequence[Source]:
        wiring = Wiring(self._clock, self._on_gpus, self._has_ended, self._sources.get(registered.name, ()))
        return registered.make(_section(registered, self._settings), wiring)

    def _has_ended(self, container: ContainerId) -> bool:
        return any(source.ended(container) for source in self._all())

    def _health(self, matches: Callable[[Registration[Any]], bool]) -> tuple[SourceHealth, ...]:
        names = [each.name for each in self._registered if matches(each)]
        return tuple(health for name in names for source in self._sources[name] for health in source.health())


def settings_model() -> type[Settings]:
    """Return the settings with the sections that sources register."""
    return with_sections({source.section: source.settings for source in SOURCES if source.settings is not None})


def _section(registered: Registration[Any], settings: Settings) -> object:
    if registered.settings is None:
        return None
    return getattr(settings, registered.section, None) or registered.settings()


def _unresolved(devices: Mapping[ContainerId, Assignment], but: Container[str]) -> Iterator[str]:
    """Yield why devices are unknown, a line for each reason; not of the targets in `but`, whose GPUs are configured."""
    by_reason: dict[str, list[str]] = {}
    for key, assignment in devices.items():
        if assignment.why and key.container not in but:
            by_reason.setdefault(assignment.why, []).append(
                "/".join(filter(None, (key.namespace, key.pod, key.container)))
            )
    for why, names in by_reason.items():
        more = f" and {len(names) - NAMED_ENGINES} more" if len(names) > NAMED_ENGINES else ""
        yield f"GPUs of {', '.join(names[:NAMED_ENGINES])}{more}: {why}"


def _resolved(devices: Mapping[ContainerId, Assignment], gpus: Sequence[GpuSample]) -> dict[ContainerId, Assignment]:
    return {
        key: replace(assignment, gpus=uuids)
        for key, assignment in devices.items()
        if (uuids := resolve(assignment, gpus)) is not None
    }
