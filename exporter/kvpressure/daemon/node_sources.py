"""The sources beside the engines' pages: started and ended together, read as one record of what surrounds engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kvpressure.config.settings import Settings, with_sections
from kvpressure.config.target import Target
from kvpressure.kubernetes import watch as kubernetes
from kvpressure.model.environment import Assignment, ContainerId, Environment
from kvpressure.model.record import exported
from kvpressure.model.samples import GpuSample, SourceHealth
from kvpressure.net.schedule import Clock
from kvpressure.net.waiting import cancel
from kvpressure.sources import gpu_exporter, host, logs, pod_devices, port_owner
from kvpressure.sources.gpu import process as gpu
from kvpressure.sources.gpu.backend import ABSENT
from kvpressure.sources.pod_devices.assign import resolve
from kvpressure.sources.source import Known, OnReport, Registration, Source, Wiring, merged

_OTHERS_BUILD_ON: Final[tuple[Registration[Any], ...]] = (
    gpu.SOURCE,
    kubernetes.SOURCE,
    pod_devices.SOURCE,
    gpu_exporter.SOURCE,
    logs.SOURCE,
    host.SOURCE,
    port_owner.SOURCE,
)
"""In the order in which they need one another."""

SOURCES: Final[tuple[Registration[Any], ...]] = (
    *_OTHERS_BUILD_ON,
    *(one for one in exported("kvpressure.sources", "SOURCE") if one not in _OTHERS_BUILD_ON),
)
"""Each is given what those before it know, and health is shown in this order; the last are found by their files."""


class NodeSources:
    """One task per source; one that is switched off, or has nothing to read here, ends or sleeps."""

    def __init__(
        self, settings: Settings, clock: Clock, on_gpus: OnReport, registered: Sequence[Registration[Any]] = SOURCES
    ) -> None:
        self._clock = clock
        self._on_gpus = on_gpus
        self._settings = settings
        self._registered = tuple(registered)
        self._sources: dict[str, Sequence[Source]] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        for one in self._registered:
            self._sources[one.name] = self._made(one)

    def start(self) -> None:
        """Start reading whatever is not read yet."""
        loop = asyncio.get_running_loop()
        for name, sources in self._sources.items():
            if name not in self._tasks:
                self._tasks[name] = [loop.create_task(source.run(), name=name) for source in sources]

    async def reload(self, settings: Settings) -> None:
        """Begin anew the sources whose settings changed; the others go on undisturbed."""
        before, self._settings = self._settings, settings
        changed = [one for one in self._registered if _section(one, settings) != _section(one, before)]
        await cancel(task for one in changed for task in self._tasks.pop(one.name, ()))
        for one in changed:
            self._sources[one.name] = self._made(one)
        self.start()

    async def stop(self) -> None:
        """End every source."""
        await cancel(task for tasks in self._tasks.values() for task in tasks)

    def detach(self) -> None:
        """Let go of the GPU drivers for a while, so that they can be unloaded or MIG be changed."""
        for source in self._all():
            source.detach()

    @property
    def discovers(self) -> bool:
        """Whether engines are looked for on this node."""
        return any(source.discovers for source in self._all())

    @property
    def targets(self) -> tuple[Target, ...]:
        """The engines that were found."""
        return tuple(target for source in self._all() for target in source.targets)

    @property
    def names(self) -> Mapping[str, str]:
        """What people call the sources of the health records."""
        return {name: title for one in self._registered for name, title in one.names.items()}

    def gpu_health(self) -> tuple[SourceHealth, ...]:
        """How the sources of GPU readings are doing; those this machine does not have only when none is there."""
        found = self._health(lambda one: one.gives_gpus)
        return tuple(health for health in found if health.reason not in ABSENT) or found

    def health(self) -> tuple[SourceHealth, ...]:
        """How every other source is doing that is switched on."""
        return self._health(lambda one: not one.gives_gpus)

    def unlogged_health(self) -> tuple[SourceHealth, ...]:
        """Those of both whose changes of state nobody logs yet."""
        found = self._health(lambda one: one.logged_by_exporter)
        shown = {(one.source, one.target) for one in (*self.gpu_health(), *self.health())}
        return tuple(one for one in found if (one.source, one.target) in shown)

    def snapshot(self, targets: Sequence[Target], gpus: Sequence[GpuSample]) -> Environment:
        """Return what all of them know now; devices are named by the uuids of `gpus`, others are left out."""
        environment, discovers = Environment(), self.discovers
        for source in self._all():
            facts = source.facts(Known(targets, gpus, environment, discovers))
            environment = merged((environment, facts))
        # Processes before pods, whichever source came first.
        held = dict(sorted(environment.devices.items(), key=lambda one: bool(one[0].pod)))
        named = {target.name for target in targets if target.gpus is not None}
        problems = (*environment.problems, *_unresolved(held, but=named))
        return replace(environment, devices=_resolved(held, gpus), problems=problems)

    def _all(self) -> Iterator[Source]:
        return (source for sources in self._sources.values() for source in sources)

    def _made(self, registered: Registration[Any]) -> Sequence[Source]:
        wiring = Wiring(self._clock, self._on_gpus, self._has_ended, self._sources.get(registered.name, ()))
        return registered.make(_section(registered, self._settings), wiring)

    def _has_ended(self, container: ContainerId) -> bool:
        return any(source.ended(container) for source in self._all())

    def _health(self, wanted: Callable[[Registration[Any]], bool]) -> tuple[SourceHealth, ...]:
        chosen = (source for one in self._registered if wanted(one) for source in self._sources[one.name])
        return tuple(health for source in chosen for health in source.health())


def settings_model() -> type[Settings]:
    """Return the settings with the sections that sources bring along themselves."""
    return with_sections({one.section: one.settings for one in SOURCES if one.settings is not None})


def _section(registered: Registration[Any], settings: Settings) -> object:
    if registered.settings is None:
        return None
    return getattr(settings, registered.section, None) or registered.settings()


def _unresolved(devices: Mapping[ContainerId, Assignment], but: Container[str]) -> Iterator[str]:
    """Why devices are unknown, except of targets whose GPUs are written down anyway."""
    for key, held in devices.items():
        if held.why and key.container not in but:
            yield f"GPUs of {'/'.join(filter(None, (key.namespace, key.pod, key.container)))}: {held.why}"


def _resolved(devices: Mapping[ContainerId, Assignment], gpus: Sequence[GpuSample]) -> dict[ContainerId, Assignment]:
    found = {key: (held, resolve(held, gpus)) for key, held in devices.items()}
    return {key: replace(held, gpus=uuids) for key, (held, uuids) in found.items() if uuids is not None}
