"""Small readings from NVML handles, each with "the driver has no such value" turned into None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

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
"""The binding asks for the number of samples, then for the samples: refused when that number was 0 or has grown."""


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
        self._last_seen_us = 0

    def read(self, t: float, sieve: Sieve) -> tuple[float, ...]:
        """Ratios, oldest first; the driver's last average where it keeps no samples; () where it has neither."""
        samples = self._new_samples(t, sieve)
        if samples:
            return sieve.shares(samples)
        if t - self._last_seen_us / 1e6 < BUFFER_SILENCE_SECONDS:
            return ()
        rates = absent(pynvml.nvmlDeviceGetUtilizationRates, self._handle)
        return () if rates is None else sieve.shares([rates.gpu])

    def _ask(self, last_seen_us: int) -> Any:
        """Value type and samples, None where there are none."""
        try:
            return absent(pynvml.nvmlDeviceGetSamples, self._handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, last_seen_us)
        except pynvml.NVMLError as error:
            if error.value in NO_SAMPLES_CODES:
                return None
            raise

    def _new_samples(self, t: float, sieve: Sieve) -> list[float]:
        # A clock set back would leave last-seen in the future and the buffer silent until the clock caught up.
        last_seen = min(self._last_seen_us, int(t * 1e6))
        answer = self._ask(last_seen)
        if answer is None or answer[0] not in _VALUE_FIELDS:
            return []
        field = _VALUE_FIELDS[answer[0]]
        fresh = sorted(
            (sample.timeStamp, getattr(sample.sampleValue, field))
            for sample in answer[1]
            if sample.timeStamp > last_seen and sieve.sample_time(sample.timeStamp / 1e6, t)
        )
        if not fresh:
            return []
        self._last_seen_us = fresh[-1][0]
        # The first read finds up to 20 s from before we looked: only the newest belongs to "now".
        return [value for _, value in (fresh if last_seen else fresh[-1:])]
