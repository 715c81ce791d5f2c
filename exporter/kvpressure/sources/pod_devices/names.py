"""The kernel's own names of this machine's GPUs, for device ids that are not the driver library's names.

NVIDIA's dynamic resource driver and GKE's plugin count by device minor, AMD's by DRM render node; neither number is
the index of NVML or amdsmi. All paths are world-readable and the same in every container.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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
            bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 0x7
            address = f"{values.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function}"
            nodes.append((values["drm_render_minor"], address, location >> 28 & 0xF))
    split = {address for _, address, partition in nodes if partition}
    for minor, address, partition in nodes:
        yield minor, f"{address}/{partition}" if address in split else address
