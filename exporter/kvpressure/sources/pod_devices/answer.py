"""What the kubelet answers, as plain records: nothing here is interpreted yet."""

from __future__ import annotations

from dataclasses import dataclass

from kvpressure.model.workload import ContainerId


@dataclass(frozen=True, slots=True)
class PluginDevice:
    """A device that a device plugin gave: the resource's name and the plugin's id for the device."""

    resource: str
    id: str


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """A device of a resource claim (dynamic resource allocation).

    `cdi_names` are qualified CDI names ("vendor/class=name"); the kubelet lists those of the claim's earlier devices
    again with each later one. `share_id` is set where only a share of the device was allocated.
    """

    claim: str
    driver: str
    pool: str
    device: str
    cdi_names: tuple[str, ...] = ()
    share_id: str = ""


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """Everything one container holds."""

    id: ContainerId
    plugin: tuple[PluginDevice, ...] = ()
    claimed: tuple[ClaimDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class KubeletAnswer:
    """Containers that hold any device, and what device plugins offer on this node; `allocatable` is None if unknown."""

    containers: tuple[ContainerDevices, ...]
    allocatable: tuple[PluginDevice, ...] | None = None
