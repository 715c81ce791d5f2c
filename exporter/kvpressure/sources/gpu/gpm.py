"""NVML GPM (Hopper and later): SM, tensor and DRAM activity between two reads of a device or MIG instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pynvml

from kvpressure.sources.gpu.plausible import Sieve

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
        """Activity since the previous read; all None at the first, and for good where GPM turns out not to be ours.

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
        return Activity(*(self._ratio(self._request.metrics[slot], sieve) for slot in range(len(METRICS))))

    @staticmethod
    def _ratio(metric: Any, sieve: Sieve) -> float | None:
        if metric.nvmlReturn != pynvml.NVML_SUCCESS:
            return None
        return sieve.share(metric.value, "activity_out_of_range")

    def close(self) -> None:
        """Give the samples back (an instance that went away)."""
        for sample in (self._before, self._spare):
            if sample is not None:
                pynvml.nvmlGpmSampleFree(sample)
        self._before = self._spare = None
        self._off = True
