"""One AMD card and its partitions. Importing this module imports the amdsmi binding.

Partitions (DPX, QPX, CPX) are processors of their own that share a card: same PCI domain, bus and device. Only the
first partition has the metrics of all of them (ROCm/amdsmi issue 134), so a card is read once and the answer's row
`partition id` is the partition's. UUIDs repeat between partitions: a GPU is named by its PCI address and partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import amdsmi

from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.sources.gpu.backend import BackendError, Card, GpuSettings
from kvpressure.sources.gpu.plausible import Sieve

MIB: Final = 2**20
NOT_AVAILABLE: Final = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})

_STATUS: Final = amdsmi.amdsmi_wrapper
ABSENT_CODES: Final = frozenset(
    {
        _STATUS.AMDSMI_STATUS_NOT_SUPPORTED,
        _STATUS.AMDSMI_STATUS_NOT_YET_IMPLEMENTED,
        _STATUS.AMDSMI_STATUS_NO_PERM,
        _STATUS.AMDSMI_STATUS_NO_DATA,
        _STATUS.AMDSMI_STATUS_FILE_NOT_FOUND,
        _STATUS.AMDSMI_STATUS_SETTING_UNAVAILABLE,
    }
)
REASONS: Final = {
    _STATUS.AMDSMI_STATUS_DRIVER_NOT_LOADED: "driver_not_loaded",
    _STATUS.AMDSMI_STATUS_INIT_ERROR: "driver_not_loaded",
    _STATUS.AMDSMI_STATUS_NO_PERM: "no_permission",
    _STATUS.AMDSMI_STATUS_NOT_FOUND: "gpu_lost",
    _STATUS.AMDSMI_STATUS_TIMEOUT: "timeout",
}
DDR_TYPES: Final = range(10, 17)
"""amdsmi_vram_type_t from DDR2 to LPDDR5: memory of an APU, of which the driver reports a carve-out."""


def _sentence(error: amdsmi.AmdSmiException) -> str:
    return " ".join(str(error).split())


def reason_of(error: amdsmi.AmdSmiException) -> str:
    """Return the stable word for an amdsmi error."""
    return REASONS.get(getattr(error, "err_code", None), "driver_error")


def describe(error: amdsmi.AmdSmiException) -> str:
    """Return an amdsmi error as the value of `GpuReport.errors`."""
    return f"{reason_of(error)}: amdsmi says: {_sentence(error)}"


def absent(call: Callable[..., Any], *args: Any) -> Any:
    """Return what `call` answers, None for no such value; raise AmdSmiException for trouble with the device."""
    try:
        return call(*args)
    except amdsmi.AmdSmiLibraryException as error:
        if error.err_code in ABSENT_CODES:
            return None
        raise


def optional(call: Callable[..., Any], handle: Any, key: str | None = None) -> Any:
    """Return a property that only decorates the reading: None for any failure, the binding's own included."""
    try:
        answer = call(handle)
    except (amdsmi.AmdSmiException, ValueError, KeyError, AttributeError):
        return None
    value = answer if key is None else answer.get(key)
    return None if value in ("", "N/A") else value


def number(value: Any) -> float | None:
    """Return a numeric reading; None for the ways amdsmi says "not available"."""
    return None if isinstance(value, str) or value in NOT_AVAILABLE else value


def open_cards(_: GpuSettings) -> Sequence[Card]:
    """Initialize amdsmi and find its cards; raises BackendError."""
    try:
        amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
        handles = amdsmi.amdsmi_get_processor_handles()
        named = [(amdsmi.amdsmi_get_gpu_device_bdf(handle), handle) for handle in handles]
    except amdsmi.AmdSmiException as error:
        raise BackendError(reason_of(error), f"amdsmi cannot be initialized: {_sentence(error)}") from error
    if not named:
        raise BackendError("no_devices", "the AMD driver is loaded and shows no GPU to this process")
    cards: dict[str, list[Processor]] = {}
    for bdf, handle in named:
        cards.setdefault(f"{bdf.rpartition('.')[0]}.0", []).append(Processor(bdf, handle))
    return [AmdCard(str(index), bdf, processors) for index, (bdf, processors) in enumerate(cards.items())]


def shutdown() -> None:
    """Shut amdsmi down."""
    with suppress(amdsmi.AmdSmiException):
        amdsmi.amdsmi_shut_down()


class Processor:
    """A whole card, or one partition of it."""

    def __init__(self, bdf: str, handle: Any) -> None:
        self.bdf = bdf
        self.handle = handle
        self.partition = number(optional(amdsmi.amdsmi_get_gpu_kfd_info, handle, "current_partition_id") or 0) or 0
        self.mode = str(optional(amdsmi.amdsmi_get_gpu_compute_partition, handle) or "")
        self.name = str(optional(amdsmi.amdsmi_get_gpu_asic_info, handle, "market_name") or "")
        self.driver_version = str(optional(amdsmi.amdsmi_get_gpu_driver_info, handle, "driver_version") or "")
        vram_type = optional(amdsmi.amdsmi_get_gpu_vram_info, handle, "vram_type")
        self.memory_kind = "carve-out" if vram_type in DDR_TYPES else "device"

    def read_memory(self, sieve: Sieve) -> tuple[float | None, float | None]:
        """Return used and total bytes of VRAM."""
        vram = amdsmi.AmdSmiMemoryType.VRAM
        total = absent(amdsmi.amdsmi_get_gpu_memory_total, self.handle, vram)
        used = absent(amdsmi.amdsmi_get_gpu_memory_usage, self.handle, vram)
        if number(total) is not None:
            return sieve.memory(number(used), number(total))
        mib = absent(amdsmi.amdsmi_get_gpu_vram_usage, self.handle)
        if mib is None or number(mib["vram_total"]) is None:
            return None, None
        in_use = number(mib["vram_used"])
        return sieve.memory(None if in_use is None else in_use * MIB, mib["vram_total"] * MIB)

    def read_activity(self, sieve: Sieve) -> float | None:
        """Return the graphics engine's averaged activity: right for a card in one piece, where the driver keeps it."""
        activity = absent(amdsmi.amdsmi_get_gpu_activity, self.handle)
        return None if activity is None else sieve.share(number(activity["gfx_activity"]))


class AmdCard:
    """The processors that share one card."""

    def __init__(self, index: str, bdf: str, processors: Sequence[Processor]) -> None:
        self.key = bdf
        self._index = index
        self._processors = sorted(processors, key=lambda processor: processor.partition)
        modes = {processor.mode for processor in processors} - {""}
        self._partitionable = bool(modes)
        self._partitioned = len(processors) > 1 or bool(modes - {"SPX"})

    def read(self, t: float) -> GpuReport:
        """Return one sample per processor; one that fails does not take the others along."""
        sieve = Sieve()
        gpus: list[GpuSample] = []
        errors: dict[str, str] = {}
        rows: list[list[Any]] | None = None
        for processor in self._processors:
            try:
                rows = self._busy_rows(processor) if rows is None else rows
                gpus.append(self._sample(t, processor, rows, sieve))
            except amdsmi.AmdSmiException as error:
                errors[self._uuid(processor)] = describe(error)
        return GpuReport(t, tuple(gpus), sieve.rejected, errors)

    def _uuid(self, processor: Processor) -> str:
        return f"{processor.bdf}/{processor.partition}" if self._partitioned else processor.bdf

    def _busy_rows(self, processor: Processor) -> list[list[Any]] | None:
        """Return how busy the engines of each partition are; slow on some cards, so read once and only where needed."""
        if not (self._partitionable or self._partitioned):
            return None
        metrics = absent(amdsmi.amdsmi_get_gpu_metrics_info, processor.handle)
        return None if metrics is None else metrics["xcp_stats.gfx_busy_inst"]

    def _utilization(self, processor: Processor, rows: list[list[Any]] | None, sieve: Sieve) -> tuple[float, ...]:
        row = int(processor.partition)
        values = [number(value) for value in rows[row]] if rows is not None and row < len(rows) else []
        busy = sieve.shares(value for value in values if value is not None)
        if busy:
            return (sum(busy) / len(busy),)
        share = None if self._partitioned else processor.read_activity(sieve)
        return () if share is None else (share,)

    def _sample(self, t: float, processor: Processor, rows: list[list[Any]] | None, sieve: Sieve) -> GpuSample:
        used, total = processor.read_memory(sieve)
        return GpuSample(
            t=t,
            uuid=self._uuid(processor),
            index=f"{self._index}:{processor.partition}" if self._partitioned else self._index,
            vendor="amd",
            name=processor.name,
            driver_version=processor.driver_version,
            memory_used_bytes=used,
            memory_total_bytes=total,
            utilization=self._utilization(processor, rows, sieve),
            profile=processor.mode if self._partitioned else "",
            parent_uuid=self.key if self._partitioned else "",
            memory_kind=processor.memory_kind,
        )
