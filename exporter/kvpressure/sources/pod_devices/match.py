"""PURE: which of the GPUs that were read an assignment means."""

from __future__ import annotations

from collections.abc import Sequence

from kvpressure.model.samples import GpuSample
from kvpressure.model.workload import Assignment
from kvpressure.sources.pod_devices.ids import pci_address


def resolve(assignment: Assignment, gpus: Sequence[GpuSample]) -> tuple[str, ...] | None:
    """The uuids (as in `gpus`) of an assignment's GPUs, in its order; None unless each is there and told apart.

    An assignment names GPUs by uuid (CUDA also takes a uuid's beginning), index, or PCI address, for AMD with
    "/partition". A device plugin gives the address of a split AMD card for its first partition.
    """
    uuids = []
    for wanted in assignment.gpus:
        found = _find(wanted, gpus)
        if len(found) != 1:
            return None
        uuids += found
    return tuple(dict.fromkeys(uuids)) or None


def _find(wanted: str, gpus: Sequence[GpuSample]) -> list[str]:
    """The uuids that the name may mean; the first way of reading the name that finds any counts."""
    name, first_partition = _key(wanted), _key(f"{wanted}/0")
    ways = (
        lambda gpu: _key(gpu.uuid) == name,
        lambda gpu: gpu.index == wanted,
        lambda gpu: _key(gpu.uuid) == first_partition,
        lambda gpu: name.startswith(("gpu-", "mig-")) and gpu.uuid.lower().startswith(name),
    )
    for way in ways:
        if found := [gpu.uuid for gpu in gpus if way(gpu)]:
            return list(dict.fromkeys(found))
    return []


def _key(name: str) -> str:
    """A form in which the same device has the same name.

    amdsmi gives partition n of a card the address of PCI function n ("0000:05:00.1/1"), the kernel that of the card.
    """
    address, slash, partition = name.partition("/")
    pci = pci_address(address)
    if not pci:
        return name.lower()
    return f"{pci.rpartition('.')[0]}.*/{partition}" if slash else pci
