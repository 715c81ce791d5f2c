"""The sources of what surrounds engines: pods, devices, logs, host. Started and ended together, read as one record."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kvpressure.app.pollers import cancel
from kvpressure.config.settings import Settings
from kvpressure.config.target import Target
from kvpressure.kubernetes.watch import KubernetesSource
from kvpressure.kubernetes.watch.source import in_cluster, is_wanted
from kvpressure.kubernetes.watch.view import ClusterView
from kvpressure.model.samples import GpuSample, SourceHealth
from kvpressure.model.workload import Assignment, ContainerId, ContainerState, Workload
from kvpressure.net.schedule import Clock
from kvpressure.sources.host import HostSource
from kvpressure.sources.logs import LogsSource
from kvpressure.sources.pod_devices import PodDevicesSource, resolve
from kvpressure.sources.port_owner import PortOwner, PortOwners, port_here

NO_GPU_JOIN = (
    "GPUs of pods are not read, so there is no memory-high-compute-low score. In the Helm chart set "
    "podResources.enabled=true and podSecurity.runAsRoot=true; it costs a read-only mount of the kubelet's socket "
    'directory and uid 0 without any capability, which Pod Security "baseline" refuses'
)
"""For who runs in a pod; docs/decisions/0330 says why it is not on by default."""

SECTIONS = ("kubernetes", "pod_resources", "logs", "host")
"""The sections of the settings that have a source each."""


class NodeSources:
    """One task per source; one that is switched off, or has nothing to read here, ends or sleeps."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._settings = settings
        self._kubernetes = KubernetesSource(settings.kubernetes, clock)
        self._kept: ClusterView | None = None
        self._devices = self._new_devices(settings)
        self._logs = LogsSource(settings.logs, clock)
        self._host = HostSource(settings.host, clock)
        self._owners = PortOwners(self._local_ports, clock)
        self._local: dict[str, int] = {}
        self._told: set[str] = set()
        self._followed: tuple[ContainerState, ...] = ()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Start reading whatever is not read yet."""
        sources = {
            "kubernetes": self._kubernetes.run,
            "pod_resources": self._devices.run,
            "logs": self._logs.run,
            "host": self._host.run,
        }
        if self._local:
            sources["engines"] = self._owners.run
        for name, run in sources.items():
            if name not in self._tasks:
                self._tasks[name] = asyncio.get_running_loop().create_task(run(), name=name)

    async def reload(self, settings: Settings) -> None:
        """Begin anew the sources whose settings changed; the others go on undisturbed."""
        before = self._settings
        changed = [name for name in SECTIONS if getattr(settings, name) != getattr(before, name)]
        await cancel(self._tasks.pop(name) for name in changed if name in self._tasks)
        if "kubernetes" in changed:
            self._kept = self._view() if is_wanted(settings.kubernetes) else None
            self._kubernetes = KubernetesSource(settings.kubernetes, self._clock)
        if "pod_resources" in changed:
            self._devices = self._new_devices(settings)
        if "logs" in changed:
            self._logs, self._followed = LogsSource(settings.logs, self._clock), ()
        if "host" in changed:
            self._host, self._followed = HostSource(settings.host, self._clock), ()
        self._settings = settings
        self.start()

    async def stop(self) -> None:
        """End every source."""
        await cancel(self._tasks.values())

    @property
    def discovers(self) -> bool:
        """Whether engines are looked for on this node."""
        return is_wanted(self._settings.kubernetes)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The engines that were found."""
        return self._view().targets

    def health(self) -> tuple[SourceHealth, ...]:
        """How every source is doing that is switched on."""
        owners = self._owners.health() if "engines" in self._tasks else ()
        sources = (self._kubernetes, self._devices, self._logs, self._host)
        return (*(health for source in sources for health in source.health()), *owners)

    def untold(self) -> tuple[SourceHealth, ...]:
        """Those of `health` whose changes of state nobody logs yet."""
        return (*self._logs.health(), *self._host.health())

    def follow(self, targets: Sequence[Target]) -> None:
        """Look at the processes behind targets of this machine."""
        self._local = {target.name: port for target in targets if (port := _local_port(target)) is not None}
        self._told = {target.name for target in targets if target.gpus is not None}
        self.start()

    def look(self, gpus: Sequence[GpuSample]) -> Workload:
        """What all of them know now; devices are named by the uuids of `gpus`, others are left out."""
        view = self._view()
        owners = self._local_owners()
        held = {**{key: owner.assignment for key, owner in owners.items()}, **self._devices.devices}
        states = tuple(view.containers.values())
        if states != self._followed:
            self._followed = states
            self._logs.follow(states)
            self._host.follow(states)
        return Workload(
            containers=view.containers,
            devices=_resolved(held, gpus),
            limits={key: owner.limits for key, owner in owners.items() if owner.limits is not None},
            logs=self._logs.reports,
            events=view.events,
            host=self._host.report,
            memory_pressure=view.memory_pressure,
            problems=(
                *view.problems,
                *self._logs.problems,
                *_untold(held, but=self._told),
            ),
            hints=(*view.hints, *self._switched_off()),
        )

    def _view(self) -> ClusterView:
        """What the API server told; after a reload what it told before, until the pods were listed anew."""
        if self._kept is None or self._kubernetes.listed:
            self._kept = None
            return self._kubernetes.view
        new = self._kubernetes.view
        return replace(self._kept, t=new.t, memory_pressure=new.memory_pressure, problems=new.problems, hints=new.hints)

    def _switched_off(self) -> Iterator[str]:
        if self.discovers and in_cluster() and not self._devices.health():
            yield NO_GPU_JOIN

    def _new_devices(self, settings: Settings) -> PodDevicesSource:
        return PodDevicesSource(settings.pod_resources, self._clock, ended=self._has_ended)

    def _has_ended(self, container: ContainerId) -> bool:
        return self._kubernetes.ended(container)

    def _local_ports(self) -> Iterable[int]:
        return self._local.values()

    def _local_owners(self) -> dict[ContainerId, PortOwner]:
        owners = self._owners.owners
        return {ContainerId("", "", name): owners[port] for name, port in self._local.items() if port in owners}


def _local_port(target: Target) -> int | None:
    """The port of a target that is a process of this machine, None for others."""
    return None if target.pod else port_here(target.url)


def _untold(devices: Mapping[ContainerId, Assignment], but: Container[str]) -> Iterator[str]:
    """Why devices cannot be told, except of targets whose GPUs are written down anyway."""
    for key, held in devices.items():
        if held.why and key.container not in but:
            yield f"GPUs of {'/'.join(filter(None, (key.namespace, key.pod, key.container)))}: {held.why}"


def _resolved(devices: Mapping[ContainerId, Assignment], gpus: Sequence[GpuSample]) -> dict[ContainerId, Assignment]:
    found = {key: (held, resolve(held, gpus)) for key, held in devices.items()}
    return {key: replace(held, gpus=uuids) for key, (held, uuids) in found.items() if uuids is not None}
