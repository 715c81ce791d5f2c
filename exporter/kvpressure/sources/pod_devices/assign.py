"""PURE: the kubelet's answer as assignments, with shared devices marked, and which GPUs an assignment means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from kvpressure.model.environment import Assignment, ContainerId
from kvpressure.model.samples import GpuSample
from kvpressure.sources.pod_devices.ids import (
    GPU_DRIVERS,
    ContainerDevices,
    Gpu,
    KernelNames,
    KubeletAnswer,
    claimed_gpus,
    pci_address,
    plugin_gpu,
)

Holders = Mapping[str, Sequence[ContainerId]]


def assignments(
    answer: KubeletAnswer,
    resource_names: Sequence[str],
    names: KernelNames,
    ended: Callable[[ContainerId], bool] = lambda _: False,
) -> dict[ContainerId, Assignment]:
    """Return the GPUs of each container; containers without GPUs have no entry.

    All or nothing: with one GPU that is unknown, `gpus` is empty and `why` says which. `resource_names` are
    patterns of `fnmatch`; containers that have `ended` (kubelets before 1.34 go on listing them) are left out.
    """
    allocated: dict[ContainerId, list[Gpu]] = {}
    for container in answer:
        if not ended(container.id) and (gpus := list(_gpus(container, resource_names, names))):
            allocated.setdefault(container.id, []).extend(gpus)
    holders: dict[str, list[ContainerId]] = {}
    for holder, gpus in allocated.items():
        for name in {gpu.name for gpu in gpus}:
            holders.setdefault(name, []).append(holder)
    return {holder: _assignment(holder, gpus, holders) for holder, gpus in allocated.items()}


def _gpus(container: ContainerDevices, resource_names: Sequence[str], names: KernelNames) -> Iterator[Gpu]:
    for device in container.plugin:
        if any(fnmatchcase(device.resource, pattern) for pattern in resource_names):
            yield plugin_gpu(device, names)
    for claimed in container.claimed:
        if claimed.driver in GPU_DRIVERS:
            yield from claimed_gpus(claimed, names)


def _assignment(container: ContainerId, gpus: Sequence[Gpu], holders: Holders) -> Assignment:
    unknown = next((gpu.unknown for gpu in gpus if not gpu.name), "")
    if unknown:
        return Assignment((), exclusive=False, why=unknown)
    names = tuple(dict.fromkeys(gpu.name for gpu in gpus))
    why = next((gpu.shared for gpu in gpus if gpu.shared), "") or _shared_with(container, names, holders)
    return Assignment(names, exclusive=not why, why=why)


def _shared_with(container: ContainerId, names: Iterable[str], holders: Holders) -> str:
    """Return a sentence that names another container with one of these GPUs, "" without any."""
    for name in names:
        others = [other for other in holders[name] if other != container]
        if others:
            first = f"{others[0].namespace}/{others[0].pod}/{others[0].container}"
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            return f"GPU {name} is held by {first}{more} too"
    return ""


def resolve(assignment: Assignment, gpus: Sequence[GpuSample]) -> tuple[str, ...] | None:
    """Return the uuids (as in `gpus`) of an assignment's GPUs, in its order; None unless each is there, and distinct.

    An assignment names GPUs by uuid (CUDA also takes a uuid's beginning), index, or PCI address, for AMD with
    "/partition". A device plugin gives the address of a split AMD card for its first partition.
    """
    uuids = []
    for assigned in assignment.gpus:
        matching = _find(assigned, gpus)
        if len(matching) != 1:
            return None
        uuids += matching
    return tuple(dict.fromkeys(uuids)) or None


def _find(assigned: str, gpus: Sequence[GpuSample]) -> list[str]:
    """Return the uuids that a name may mean; the first way of reading the name that finds any counts."""
    name, first_partition = _key(assigned), _key(f"{assigned}/0")
    ways = (
        lambda gpu: _key(gpu.uuid) == name,
        lambda gpu: gpu.index == assigned,
        lambda gpu: _key(gpu.uuid) == first_partition,
        lambda gpu: name.startswith(("gpu-", "mig-")) and gpu.uuid.lower().startswith(name),
    )
    for way in ways:
        if uuids := [gpu.uuid for gpu in gpus if way(gpu)]:
            return list(dict.fromkeys(uuids))
    return []


def _key(name: str) -> str:
    """Return a form in which the same device has the same name.

    amdsmi gives partition n of a card the address of PCI function n ("0000:05:00.1/1"), the kernel that of the card.
    """
    address, slash, partition = name.partition("/")
    pci = pci_address(address)
    if not pci:
        return name.lower()
    return f"{pci.rpartition('.')[0]}.*/{partition}" if slash else pci
