"""Small readings from NVML handles, each with "the driver has no such value" turned into None.

Of NVML GPM (Hopper and later) SM, tensor and DRAM activity between two reads of a device or MIG instance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import pynvml

from kvpressure.sources.gpu.plausible import Sieve

P = ParamSpec("P")
R = TypeVar("R")

ABSENT_CODES: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_NO_DATA,
    }
)
"""Answers that mean "this value is not to be had", not "this device is in trouble"."""

REASONS: Final = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "library_not_found",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "driver_not_loaded",
    pynvml.NVML_ERROR_UNINITIALIZED: "driver_not_loaded",
    pynvml.NVML_ERROR_NO_PERMISSION: "no_permission",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "library_mismatch",
    pynvml.NVML_ERROR_GPU_IS_LOST: "gpu_lost",
    pynvml.NVML_ERROR_RESET_REQUIRED: "gpu_lost",
    pynvml.NVML_ERROR_TIMEOUT: "timeout",
}

_VALUE_FIELDS: Final = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
}

BUFFER_SILENCE_SECONDS: Final = 2.0
"""A sample buffer with nothing new for longer than this is not kept up by the driver: ask for its rates instead."""


def reason_of(error: Any) -> str:
    """Return the stable word for an NVML error."""
    return REASONS.get(error.value, "driver_error")


def describe(error: Any) -> str:
    """Return an NVML error as the value of `GpuReport.errors`."""
    hint = "; it stays lost until it is reset, look for XID in the kernel log" if reason_of(error) == "gpu_lost" else ""
    return f"{reason_of(error)}: NVML says: {error}{hint}"


NO_SAMPLES_CODES: Final = frozenset({pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_INSUFFICIENT_SIZE})
"""The binding requests the number of samples, then the samples: refused when that number was 0 or has grown."""


def absent(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Return what `call` answers, None where there is no such value; raise NVMLError for trouble with the device."""
    try:
        return call(*args, **kwargs)
    except pynvml.NVMLError as error:
        if error.value in ABSENT_CODES:
            return None
        raise


def read_memory(handle: Any, sieve: Sieve) -> tuple[float | None, float | None]:
    """Return used and total bytes; version 2 keeps the driver's reserve out of `used`, old drivers only have 1."""
    info = absent(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if info is None:
        info = absent(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return (None, None) if info is None else sieve.memory(info.used, info.total)


class UtilizationBuffer:
    """Reads the driver's utilization samples since the previous read, so that a 1 s poll does not alias."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._newest_us = 0

    def read(self, t: float, sieve: Sieve) -> tuple[float, ...]:
        """Return ratios, oldest first; the driver's last average where it keeps no samples; () where it has neither."""
        samples = self._new_samples(t, sieve)
        if samples:
            return sieve.shares(samples)
        if t - self._newest_us / 1e6 < BUFFER_SILENCE_SECONDS:
            return ()
        rates = absent(pynvml.nvmlDeviceGetUtilizationRates, self._handle)
        return () if rates is None else sieve.shares([rates.gpu])

    def _new_samples(self, t: float, sieve: Sieve) -> list[float]:
        # After a clock was set back, the newest would lie in the future and the buffer be silent until then.
        newest = min(self._newest_us, int(t * 1e6))
        try:
            kind = pynvml.NVML_GPU_UTILIZATION_SAMPLES
            answer = absent(pynvml.nvmlDeviceGetSamples, self._handle, kind, newest)
        except pynvml.NVMLError as error:
            if error.value in NO_SAMPLES_CODES:
                return []
            raise
        if answer is None or answer[0] not in _VALUE_FIELDS:
            return []
        field = _VALUE_FIELDS[answer[0]]
        fresh = sorted(
            (sample.timeStamp, getattr(sample.sampleValue, field))
            for sample in answer[1]
            if sample.timeStamp > newest and sieve.sample_time(sample.timeStamp / 1e6, t)
        )
        if not fresh:
            return []
        self._newest_us = fresh[-1][0]
        # The first read finds up to 20 s of samples from before it: only the newest belongs to "now".
        return [value for _, value in (fresh if newest else fresh[-1:])]


METRICS: Final = (
    pynvml.NVML_GPM_METRIC_SM_UTIL,
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
)
OFF_CODES: Final = frozenset(
    {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
)


class Activity(NamedTuple):
    """Ratios 0..1, None where GPM gives none."""

    sm: float | None = None
    tensor: float | None = None
    dram: float | None = None


def supported(handle: Any) -> bool:
    """Whether the device has GPM and lets us read it."""
    try:
        return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except pynvml.NVMLError:
        return False


class Gpm:
    """Two samples that take turns; `take` fills one (for a device, or for one MIG instance of it)."""

    def __init__(self, take: Callable[[Any], Any]) -> None:
        self._take = take
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for slot, metric in enumerate(METRICS):
            self._request.metrics[slot].metricId = metric
        self._before: Any = None
        self._spare: Any = None
        self._off = False

    def read(self, sieve: Sieve) -> Activity:
        """Return activity since the previous read; all None at the first, and for good where GPM is not allowed.

        Never raises NVMLError: memory and utilization stay worth reading when GPM fails.
        """
        if self._off:
            return Activity()
        try:
            return self._read(sieve)
        except pynvml.NVMLError as error:
            self._off = error.value in OFF_CODES
            return Activity()

    def _read(self, sieve: Sieve) -> Activity:
        now = self._spare or pynvml.nvmlGpmSampleAlloc()
        self._spare = now  # kept for the next read should `take` raise
        self._take(now)
        before, self._before, self._spare = self._before, now, self._before
        if before is None:
            return Activity()
        self._request.sample1, self._request.sample2 = before, now
        pynvml.nvmlGpmMetricsGet(self._request)
        metrics = (self._request.metrics[slot] for slot in range(len(METRICS)))
        values = (metric.value if metric.nvmlReturn == pynvml.NVML_SUCCESS else None for metric in metrics)
        return Activity(*(sieve.share(value, "activity_out_of_range") for value in values))

    def close(self) -> None:
        """Give the samples back (an instance that went away)."""
        for sample in (self._before, self._spare):
            if sample is not None:
                pynvml.nvmlGpmSampleFree(sample)
        self._before = self._spare = None
        self._off = True
