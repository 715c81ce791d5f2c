"""The kubelet's answer, and its ids of GPUs read as uuid, PCI address or index; the kernel's own names of GPUs.

NVIDIA's dynamic resource driver and GKE's plugin count by device minor, AMD's by DRM render node; neither number is
the index of NVML or amdsmi. All paths are world-readable and the same in every container.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from kvpressure.model.environment import ContainerId
from kvpressure.printable import brief

PROC: Final = Path("/proc")
SYS: Final = Path("/sys")

_INFORMATION: Final = re.compile(r"^(Model|GPU UUID|Device Minor):\s*(.+?)\s*$", re.MULTILINE)
_PROPERTY: Final = re.compile(r"^(\w+) (\d+)$", re.MULTILINE)
_MAX_FILE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class KernelNames:
    """`nvidia_minors`: uuid by device minor, None where the NVIDIA driver shows none (then minors count as indices).

    `nvidia_models` are the kinds of NVIDIA cards; `amd` maps a platform device ("amdgpu_xcp_3") or a render node
    ("renderD131") to a PCI address, or address and partition ("0000:05:00.0/1"); `amd_order` are the same names in
    the order in which HIP counts devices.
    """

    nvidia_minors: Mapping[int, str] | None = None
    nvidia_models: frozenset[str] = frozenset()
    amd: Mapping[str, str] = field(default_factory=dict)
    amd_order: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether no driver showed any GPU."""
        return self.nvidia_minors is None and not self.amd


def read_kernel_names(proc: Path = PROC, sys: Path = SYS) -> KernelNames:
    """Read them; what cannot be read is absent. Blocks, behind a sick driver perhaps for ever; never raises."""
    cards = [dict(_INFORMATION.findall(text)) for text in _texts(proc / "driver/nvidia/gpus", "information")]
    minors = {
        int(card["Device Minor"]): card["GPU UUID"]
        for card in cards
        if card.get("Device Minor", "").isdecimal() and "GPU UUID" in card
    }
    order = list(_kfd_gpus(sys))
    amd = {f"renderD{minor}": name for minor, name in order}
    with suppress(OSError):
        for path in (sys / "devices/platform").glob("amdgpu_xcp_*/drm/renderD*"):
            if path.name in amd:
                amd[path.parent.parent.name] = amd[path.name]
    models = frozenset(card["Model"] for card in cards if "Model" in card)
    return KernelNames(minors if cards else None, models, amd, tuple(name for _, name in order))


def _texts(directory: Path, file: str) -> Iterator[str]:
    """Return the content of `file` in each of the directory's directories, in natural order."""
    try:
        inner = sorted(directory.iterdir(), key=lambda path: (len(path.name), path.name))
    except OSError:
        return
    for path in inner:
        with suppress(OSError), (path / file).open(encoding="utf-8", errors="replace") as content:
            yield content.read(_MAX_FILE_BYTES)


def _kfd_gpus(sys: Path) -> Iterator[tuple[int, str]]:
    """Render minor and name of each AMD GPU or partition that this process may use.

    Bits 31 to 28 of a node's location_id are the partition, the others PCI bus, device and function
    (drivers/gpu/drm/amd/amdkfd/kfd_topology.c); the cards without partitions have partition 0 only.
    """
    nodes = []
    for text in _texts(sys / "class/kfd/kfd/topology/nodes", "properties"):
        values = {name: int(value) for name, value in _PROPERTY.findall(text)}
        if values.get("drm_render_minor", 0) > 0 and values.get("simd_count", 0) > 0 and "location_id" in values:
            location = values["location_id"]
            bus = location >> 8 & 0xFF
            device = location >> 3 & 0x1F
            function = location & 0x7
            address = f"{values.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function}"
            nodes.append((values["drm_render_minor"], address, location >> 28 & 0xF))
    split = {address for _, address, partition in nodes if partition}
    for minor, address, partition in nodes:
        yield minor, f"{address}/{partition}" if address in split else address


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
    device: str
    cdi_names: tuple[str, ...] = ()
    share_id: str = ""


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """All devices of one container."""

    id: ContainerId
    plugin: tuple[PluginDevice, ...] = ()
    claimed: tuple[ClaimDevice, ...] = ()


KubeletAnswer: TypeAlias = tuple[ContainerDevices, ...]
"""The containers with any device."""

GPU_DRIVERS: Final = ("gpu.nvidia.com", "gpu.amd.com")
"""Drivers of dynamic resource allocation whose devices are GPUs; others (network cards, channels) are not looked at."""

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NVIDIA_UUID: Final = re.compile(rf"(GPU|MIG)-({_UUID})", re.IGNORECASE)
# Drivers before R470 name a MIG instance by its GPU, GPU instance and compute instance.
_OLD_MIG: Final = re.compile(rf"MIG-GPU-{_UUID}/\d+/\d+", re.IGNORECASE)
_PCI: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_INDEX: Final = re.compile(r"\d{1,3}(?::\d{1,2})?")
_MINOR: Final = re.compile(r"(?:nvidia|gpu-)(\d{1,3})")
_GKE_INSTANCE: Final = re.compile(r"nvidia\d+/gi\d+")
_AMD_PARTITION: Final = re.compile(r"amdgpu_xcp_\d+")
_AMD_CLAIM: Final = re.compile(r"gpu-\d+-(\d+)")
# "::n" is NVIDIA's plugin (time-slicing and MPS alike), "-slice-n" AMD's, "/vgpun" GKE's.
_REPLICA: Final = re.compile(r"(.+?)(?:::.*|-slice-\d+|/vgpu\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device: its `name` is a uuid, a PCI address (of a partition: "address/partition") or an index.

    With an empty name, `unknown` says in a sentence why it is not known; `shared`, if not empty, why others may use
    the device too.
    """

    name: str = ""
    unknown: str = ""
    shared: str = ""


def pci_address(text: str) -> str:
    """Return a PCI address as the kernel writes it ("0000:c1:00.0"), in any case and length of domain; "" if none.

    NVML writes domains with eight digits.
    """
    match = _PCI.fullmatch(text)
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower() if match else ""


def nvidia_uuid(text: str) -> str:
    """Return a GPU's or MIG instance's uuid as NVML writes it; "" if `text` is none."""
    if _OLD_MIG.fullmatch(text):
        return f"MIG-GPU-{text[8:].lower()}"
    match = _NVIDIA_UUID.fullmatch(text)
    return f"{match[1].upper()}-{match[2].lower()}" if match else ""


def is_index(text: str) -> bool:
    """Whether it is an index such as "0", or "0:1" for the MIG instance 1 of GPU 0."""
    return _INDEX.fullmatch(text) is not None


def plugin_gpu(device: PluginDevice, names: KernelNames) -> Gpu:
    """Return the GPU behind a device plugin's id."""
    text = device.id.strip()
    replica = _REPLICA.fullmatch(text)
    gpu = _gpu(replica[1] if replica else text, names)
    if not gpu.name and not gpu.unknown:
        gpu = Gpu(unknown=f"the id {brief(device.id, 80)!r} of {brief(device.resource, 80)} has no form known here")
    if replica or device.resource.endswith(".shared"):
        shared = f"{brief(device.resource, 80)} {brief(text, 80)} is one of several shares of the GPU"
        return replace(gpu, shared=f"{shared} (time-slicing or MPS)")
    return gpu


def claimed_gpus(device: ClaimDevice, names: KernelNames) -> Sequence[Gpu]:
    """Return the GPUs behind one device of a claim: one, or, where CDI names name several uuids, those.

    The kubelet repeats the CDI names of the claim's earlier devices, so that many uuids are those of one claim.
    """
    cdi = [name.rpartition("=")[2] for name in device.cdi_names]
    uuids = list(dict.fromkeys(uuid for name in cdi if (uuid := nvidia_uuid(name))))
    gpus = [Gpu(name) for name in uuids] or [_claimed_by_name(device, cdi, names)]
    if not device.share_id:
        return gpus
    shared = f"the claim {brief(device.claim, 120)} holds a share of the device {brief(device.device, 80)}"
    return [replace(gpu, shared=shared) for gpu in gpus]


def _claimed_by_name(device: ClaimDevice, cdi: Sequence[str], names: KernelNames) -> Gpu:
    if device.driver == "gpu.amd.com" and (match := _AMD_CLAIM.fullmatch(device.device)):
        gpu = _amd(f"renderD{match[1]}", names)
    else:
        gpu = _gpu(device.device, names)
    indices = list(dict.fromkeys(name for name in cdi if is_index(name)))
    if gpu.name or (not indices and gpu.unknown):
        return gpu
    if len(indices) == 1:
        return Gpu(indices[0])
    what = f"device {brief(device.device, 80)!r} of the claim {brief(device.claim, 120)}"
    return Gpu(unknown=f"which GPU is {what} is unknown: neither its name nor its CDI names have a uuid or index")


def _gpu(text: str, names: KernelNames) -> Gpu:
    """Return the GPU of that name; neither a name nor a sentence when the form is not known."""
    if known := nvidia_uuid(text) or (text if is_index(text) else ""):
        return Gpu(known)
    if address := pci_address(text):
        # AMD's plugin gives the address of a split card for its first partition.
        return Gpu(f"{address}/0" if f"{address}/0" in names.amd_order else address)
    if match := _MINOR.fullmatch(text):
        return _minor(int(match[1]), names.nvidia_minors)
    if _GKE_INSTANCE.fullmatch(text):
        return Gpu(unknown=f"{text} is a MIG instance by its GPU instance id, which no reading of the GPU carries")
    if _AMD_PARTITION.fullmatch(text):
        return _amd(text, names)
    return Gpu()


def _minor(minor: int, uuids: Mapping[int, str] | None) -> Gpu:
    if uuids is None:
        return Gpu(str(minor))
    if minor in uuids:
        return Gpu(nvidia_uuid(uuids[minor]) or uuids[minor])
    return Gpu(unknown=f"the NVIDIA driver shows no GPU with device minor {minor} to the exporter")


def _amd(name: str, names: KernelNames) -> Gpu:
    if name in names.amd:
        return Gpu(names.amd[name])
    return Gpu(unknown=f"{name} is not in the AMD driver's topology as the exporter sees it")
