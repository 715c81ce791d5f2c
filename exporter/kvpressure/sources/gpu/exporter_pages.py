"""PURE: what pages of dcgm-exporter and AMD's device-metrics-exporter say of GPUs, and which containers hold them.

Both serve gauges that they renew every few seconds (dcgm-exporter every 30 by default), so a value is a moment's, not
the mean that the driver's own samples give.

Names, labels and units: dcgm-exporter 4.6 (`etc/default-counters.csv`, `etc/dcp-metrics-included.csv`,
`internal/pkg/rendermetrics`), device-metrics-exporter 1.5 (`docs/configuration/metricslist.md` and `configmap.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kvpressure.model.environment import Assignment, ContainerId
from kvpressure.model.errors import NotMetricsError, SourceError
from kvpressure.model.record import record
from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.promtext.lines import Series
from kvpressure.sources.gpu.plausible import Sieve

NAME: Final = "gpu_exporter"
MIB: Final = 2.0**20
MAX_GPUS: Final = 256
"""GPUs and instances of one node: 16 cards of 8 partitions are 128."""

Readings = Mapping[str, float]


class SeveralHostsError(SourceError, reason="several_hosts"):
    """The page has GPUs of several nodes, whose indices would be confused."""


@record
class Kind:
    """What one exporter calls things. `names` are all its series that are read, each once for every spelling.

    `identity`, `index` and `instance` (of a part of a card) are labels. `read` makes a sample of values by name.
    """

    names: frozenset[str]
    identity: tuple[str, ...]
    index: str
    instance: str
    read: Callable[[GpuSample, Readings, Mapping[str, str], Sieve], GpuSample]


def _first(readings: Readings, *names: str) -> float | None:
    return next((readings[name] for name in names if name in readings), None)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _shares(sieve: Sieve, percent: float | None) -> tuple[float, ...]:
    return () if percent is None else sieve.shares((percent,))


def _dcgm(gpu: GpuSample, readings: Readings, labels: Mapping[str, str], sieve: Sieve) -> GpuSample:
    """Read memory in MiB, activity as ratios; without a utilization (MIG) the engine's activity stands for it."""
    used, free = _first(readings, "DCGM_FI_DEV_FB_USED"), _first(readings, "DCGM_FI_DEV_FB_FREE")
    total = _first(readings, "DCGM_FI_DEV_FB_TOTAL")
    if total is None and used is not None and free is not None:
        total = used + free + readings.get("DCGM_FI_DEV_FB_RESERVED", 0.0)
    used_bytes, total_bytes = sieve.memory(_times(used, MIB), _times(total, MIB))
    busy = _first(readings, "DCGM_FI_DEV_GPU_UTIL")
    if busy is None:
        busy = _times(_first(readings, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), 100)

    def active(name: str) -> float | None:
        return sieve.share(_times(_first(readings, name), 100), "activity_out_of_range")

    return replace(
        gpu,
        vendor="nvidia",
        name=labels.get("modelName", ""),
        driver_version=labels.get("DCGM_FI_DRIVER_VERSION", ""),
        profile=labels.get("GPU_I_PROFILE", ""),
        memory_used_bytes=used_bytes,
        memory_total_bytes=total_bytes,
        utilization=_shares(sieve, busy),
        sm_active_ratio=active("DCGM_FI_PROF_SM_ACTIVE"),
        tensor_active_ratio=active("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
        dram_active_ratio=active("DCGM_FI_PROF_DRAM_ACTIVE"),
    )


def _amd(gpu: GpuSample, readings: Readings, labels: Mapping[str, str], sieve: Sieve) -> GpuSample:
    """Read memory in MB as amdsmi counts it (MiB), activity in percent; activity is of whole cards only."""
    used, total = readings.get("gpu_used_vram"), readings.get("gpu_total_vram")
    used_bytes, total_bytes = sieve.memory(_times(used, MIB), _times(total, MIB))
    return replace(
        gpu,
        vendor="amd",
        name=labels.get("card_model", ""),
        profile=labels.get("gpu_compute_partition_type", "").lower().replace("spx", ""),
        memory_used_bytes=used_bytes,
        memory_total_bytes=total_bytes,
        utilization=_shares(sieve, readings.get("gpu_gfx_activity")),
        dram_active_ratio=sieve.share(readings.get("gpu_umc_activity"), "activity_out_of_range"),
    )


_AMD_NAMES: Final = ("gpu_used_vram", "gpu_total_vram", "gpu_gfx_activity", "gpu_umc_activity")
KINDS: Final = (
    Kind(
        frozenset(
            f"DCGM_FI_{name}"
            for name in (
                *("DEV_FB_USED", "DEV_FB_FREE", "DEV_FB_TOTAL", "DEV_FB_RESERVED", "DEV_GPU_UTIL"),
                *("PROF_GR_ENGINE_ACTIVE", "PROF_SM_ACTIVE", "PROF_PIPE_TENSOR_ACTIVE", "PROF_DRAM_ACTIVE"),
            )
        ),
        ("UUID", "uuid"),
        "gpu",
        "GPU_I_ID",
        _dcgm,
    ),
    Kind(frozenset(_AMD_NAMES), ("gpu_uuid", "serial_number"), "gpu_id", "gpu_partition_id", _amd),
)
"""Adding an exporter is one more row."""
AMD_PREFIX: Final = "amd_"
"""What GPU operators set as `MetricsFieldPrefix`; without it the names begin with `gpu_`."""

WANTED: Final = frozenset(
    name.encode() for kind in KINDS for name in (*kind.names, *(AMD_PREFIX + name for name in _AMD_NAMES))
)
"""All names that are read, in every spelling."""


@dataclass
class _Gpu:
    """One GPU or instance of a page: labels of its first series, values by name, and the containers that hold it."""

    labels: Mapping[str, str]
    readings: dict[str, float] = field(default_factory=dict)
    holders: set[ContainerId] = field(default_factory=set)


def read_page(
    series: Iterable[Series], values: Iterable[float], t: float
) -> tuple[GpuReport, dict[ContainerId, Assignment]]:
    """Return the GPUs of a page, and which containers it says hold them. `t` is when it came, in unix seconds.

    Raises SourceError where it has no GPU, or those of several nodes, whose indices would be confused.
    """
    by_card: dict[tuple[Kind, str, str], _Gpu] = {}
    hosts = set()
    for line, value in zip(series, values, strict=True):
        name, labels = line.name.removeprefix(AMD_PREFIX), dict(line.labels)
        kind = next(kind for kind in KINDS if name in kind.names)
        index, part = labels.get(kind.index, ""), labels.get(kind.instance, "")
        if not index.isdecimal() or not (part.isdecimal() or not part):
            continue
        hosts.add(labels.get("Hostname", labels.get("hostname", "")))
        gpu = by_card.setdefault((kind, index, part), _Gpu(labels))
        gpu.readings[name] = value
        if pod := labels.get("pod", ""):
            gpu.holders.add(ContainerId(labels.get("namespace", ""), pod, labels.get("container", "")))
    if not by_card:
        raise NotMetricsError("no GPU's memory or utilization; is this dcgm-exporter or AMD's exporter?")
    if len(hosts) > 1 or len(by_card) > MAX_GPUS:
        text = (
            f"{len(by_card)} GPUs of {len(hosts)} hosts: name the exporter of this node, no service in front of several"
        )
        raise SeveralHostsError(text)
    sieve, gpus = Sieve(), list[GpuSample]()
    holders = dict[str, set[ContainerId]]()
    for (kind, index, part), gpu in by_card.items():
        sample = kind.read(_placed(kind, gpu.labels, index, part, t), gpu.readings, gpu.labels, sieve)
        gpus.append(sample)
        holders[sample.uuid] = gpu.holders
    gpus.sort(key=lambda gpu: tuple(map(int, gpu.index.split(":"))))
    return GpuReport(t, tuple(gpus), sieve.rejected), _assignments(holders)


def _placed(kind: Kind, labels: Mapping[str, str], index: str, part: str, t: float) -> GpuSample:
    """Return the GPU with its names alone. An instance has no uuid of its own on such pages: its card's, and its id."""
    whole = next((labels[label] for label in kind.identity if labels.get(label)), f"{kind.index}-{index}")
    if not part or labels.get("gpu_compute_partition_type", "").lower() == "spx":  # such a card is its partition 0
        return GpuSample(t, whole, index, "")
    return GpuSample(t, f"{whole}/{part}", f"{index}:{part}", "", parent_uuid=whole)


def _assignments(holders: Mapping[str, set[ContainerId]]) -> dict[ContainerId, Assignment]:
    by_container: dict[ContainerId, list[str]] = {}
    for uuid, containers in holders.items():
        for container in containers:
            by_container.setdefault(container, []).append(uuid)
    return {
        container: Assignment(
            tuple(uuids),
            exclusive=not (shared := [uuid for uuid in uuids if len(holders[uuid]) > 1]),
            why=f"GPU {shared[0]} has {len(holders[shared[0]])} holders" if shared else "",
        )
        for container, uuids in by_container.items()
    }
