"""One NVIDIA card and its MIG instances. Importing this module imports the NVML binding."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pynvml

from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.sources.gpu.backend import BackendError, Card, GpuSettings
from kvpressure.sources.gpu.nvml_calls import (
    Activity,
    Gpm,
    UtilizationBuffer,
    absent,
    describe,
    read_memory,
    reason_of,
    supported,
)
from kvpressure.sources.gpu.plausible import Sieve


def open_cards(settings: GpuSettings) -> Sequence[Card]:
    """Initialize NVML and find its cards; raises BackendError."""
    try:
        pynvml.nvmlInit()
        driver_version = pynvml.nvmlSystemGetDriverVersion()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise BackendError(reason_of(error), f"NVML cannot be initialized: {error}") from error
    if count == 0:
        raise BackendError("no_devices", "the NVIDIA driver is loaded and shows no GPU to this process")
    cards: list[Card] = []
    for index in range(count):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            cards.append(NvmlCard(index, handle, driver_version, settings.gpm))
        except pynvml.NVMLError as error:
            cards.append(FailedCard(str(index), describe(error)))
    return cards


def shutdown() -> None:
    """Shut NVML down, unless its driver is gone already."""
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


class FailedCard:
    """A card whose handle the driver refuses: it stays in the errors until NVML is opened again."""

    def __init__(self, key: str, error: str) -> None:
        self.key = key
        self._error = error

    def read(self, t: float) -> GpuReport:
        """Return no sample, one error."""
        return GpuReport(t, (), errors={self.key: self._error})


class Instance:
    """A MIG instance: its own memory and GPM activity, never a utilization."""

    def __init__(self, parent: NvmlCard, handle: Any, uuid: str, number: int) -> None:
        self.handle = handle
        self.uuid, self.parent_uuid = uuid, parent.uuid
        self.index = f"{parent.index}:{number}"
        self.name, _, self.profile = pynvml.nvmlDeviceGetName(handle).partition(" MIG ")
        gpu_instance = absent(pynvml.nvmlDeviceGetGpuInstanceId, handle) if parent.has_gpm else None
        take = partial(pynvml.nvmlGpmMigSampleGet, parent.handle, gpu_instance)
        self.gpm = None if gpu_instance is None else Gpm(take)


class NvmlCard:
    """One physical card; raises NVMLError when it cannot even be named."""

    def __init__(self, index: int, handle: Any, driver_version: str, gpm: bool) -> None:
        self.index = str(index)
        self.handle = handle
        self.uuid: str = pynvml.nvmlDeviceGetUUID(handle)
        self.key = self.uuid
        self.parent_uuid = self.profile = ""
        self.has_gpm = gpm and supported(handle)
        self.name: str = pynvml.nvmlDeviceGetName(handle)
        self._driver_version = driver_version
        self._mig = self._mig_enabled()
        self._utilization = UtilizationBuffer(handle)
        self.gpm = Gpm(partial(pynvml.nvmlGpmSampleGet, handle)) if self.has_gpm and not self._mig else None
        self._instances: dict[str, Instance] = {}

    def _mig_enabled(self) -> bool:
        modes = absent(pynvml.nvmlDeviceGetMigMode, self.handle)
        return modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE

    def read(self, t: float) -> GpuReport:
        """Return the card and, in MIG mode, its instances."""
        sieve = Sieve()
        try:
            if self._mig_enabled() != self._mig:
                return GpuReport(t, (), errors={self.key: "reopen: MIG mode changed, handles have to be made again"})
            errors: dict[str, str] = {}
            card = self._sample(t, self, sieve)
            utilization = () if self._mig else self._utilization.read(t, sieve)
            kind = self._memory_kind(card.memory_total_bytes)
            card = replace(card, utilization=utilization, memory_kind=kind)
            gpus = (card, *self._read_instances(t, sieve, errors))
        except pynvml.NVMLError as error:
            return GpuReport(t, (), sieve.rejected, {self.key: describe(error)})
        return GpuReport(t, gpus, sieve.rejected, errors)

    def _memory_kind(self, total: float | None) -> str:
        """Return what memory it has: only integrated devices have none of their own to report."""
        if total is not None:
            return "device"
        try:
            pynvml.nvmlDeviceGetMemoryInfo(self.handle)
        except pynvml.NVMLError as error:
            return "integrated" if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED else "device"
        return "device"

    def _read_instances(self, t: float, sieve: Sieve, errors: dict[str, str]) -> list[GpuSample]:
        """Return the instances' samples; one that went away between being found and being read goes into `errors`."""
        instances = self._find_instances() if self._mig else {}
        for uuid in self._instances.keys() - instances.keys():
            gone = self._instances[uuid].gpm
            if gone is not None:
                gone.close()
        self._instances = instances
        samples = []
        for instance in instances.values():
            try:
                samples.append(self._sample(t, instance, sieve))
            except pynvml.NVMLError as error:
                errors[instance.uuid] = describe(error)
        return samples

    def _find_instances(self) -> dict[str, Instance]:
        """Return the instances of now: they come and go while MIG mode stays on."""
        instances: dict[str, Instance] = {}
        for number in range(absent(pynvml.nvmlDeviceGetMaxMigDeviceCount, self.handle) or 0):
            handle = absent(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, self.handle, number)
            if handle is None:
                continue
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            known = self._instances.get(uuid) or Instance(self, handle, uuid, number)
            known.handle = handle
            instances[uuid] = known
        return instances

    def _sample(self, t: float, device: NvmlCard | Instance, sieve: Sieve) -> GpuSample:
        """Return what a card and an instance have in common."""
        used, total = read_memory(device.handle, sieve)
        activity = device.gpm.read(sieve) if device.gpm else Activity()
        return GpuSample(
            t=t,
            uuid=device.uuid,
            index=device.index,
            vendor="nvidia",
            name=device.name,
            driver_version=self._driver_version,
            memory_used_bytes=used,
            memory_total_bytes=total,
            sm_active_ratio=activity.sm,
            tensor_active_ratio=activity.tensor,
            dram_active_ratio=activity.dram,
            profile=device.profile,
            parent_uuid=device.parent_uuid,
        )
