"""GPU values: per device, and of an engine's devices beside its demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvpressure.config.target import ALL_GPUS
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.family import engine_family, gpu_family
from kvpressure.model.samples import GpuSample
from kvpressure.model.values import Derived, Value, known, ramp
from kvpressure.signals.context import Context, GpuWindow
from kvpressure.signals.points import mean
from kvpressure.signals.windows import EngineWindow

FAMILIES: Final = (
    gpu_family(
        "gpu_info", "1; device details as labels.", "name", "driver_version", "profile", "parent_uuid", "memory_kind"
    ),
    gpu_family("gpu_memory_used_bytes", "Device memory in use."),
    gpu_family("gpu_memory_total_bytes", "Device memory."),
    gpu_family(
        "gpu_utilization_ratio", "Share of time with a kernel running: mean of the driver's samples over the window."
    ),
    gpu_family("gpu_utilization_valid", "1 if the driver reports a utilization, 0 if not (MIG)."),
    gpu_family("gpu_sm_active_ratio", "Share of time the streaming multiprocessors were active, mean over the window."),
    gpu_family("gpu_tensor_active_ratio", "Share of time the tensor pipes were active, mean over the window."),
    gpu_family("gpu_dram_active_ratio", "Share of the memory bandwidth in use, mean over the window."),
    engine_family("engine_gpu_info", "1 for each GPU used by this engine only.", "gpu_uuid"),
    engine_family("engine_gpu_memory_used_ratio", "Share of device memory used, maximum over the engine's GPUs."),
    engine_family("engine_gpu_utilization_ratio", "Mean utilization of the engine's GPUs over the window."),
    engine_family("memory_high_compute_low_ratio", "0 to 1: device memory high and compute low while there is demand."),
)


def derive_gpu(window: GpuWindow) -> Derived:
    """Return the device's own series; `gpu_utilization_valid` is 0 where the driver gives no utilization (MIG)."""
    last, utilization = window.last, window.utilization
    return known(
        {
            "gpu_info": _info(last),
            "gpu_memory_used_bytes": last.memory_used_bytes,
            "gpu_memory_total_bytes": last.memory_total_bytes,
            "gpu_utilization_ratio": utilization,
            "gpu_utilization_valid": float(utilization is not None),
            "gpu_sm_active_ratio": window.mean(lambda sample: sample.sm_active_ratio),
            "gpu_tensor_active_ratio": window.mean(lambda sample: sample.tensor_active_ratio),
            "gpu_dram_active_ratio": window.mean(lambda sample: sample.dram_active_ratio),
        }
    )


def derive(window: EngineWindow, context: Context) -> Derived:
    """Return the engine's GPUs together, and the memory-high-compute-low score."""
    used = [(gpu.last.memory_used_bytes, gpu.last.memory_total_bytes) for gpu in context.gpus]
    memory = _of_all(max, [a / b if a is not None and b else None for a, b in used])
    utilization = _of_all(mean, [gpu.utilization for gpu in context.gpus])
    score = None
    if memory is not None and utilization is not None:
        score = _memory_high_compute_low_score(window, context.thresholds, memory, utilization)
    return known(
        {
            "engine_gpu_info": {gpu.last.uuid: 1.0 for gpu in context.gpus},
            "engine_gpu_memory_used_ratio": memory,
            "engine_gpu_utilization_ratio": utilization,
            "memory_high_compute_low_ratio": score,
        }
    )


def utilization_since(gpus: Sequence[GpuWindow], since: float) -> float | None:
    """Return the mean over the GPUs of the driver's samples since `since`; None without GPUs, or when one has none."""
    return _of_all(mean, [gpu.utilization_since(since) for gpu in gpus])


def _of_all(summed: Callable[[Sequence[float]], float], values: Sequence[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return summed(known_values) if known_values and len(known_values) == len(values) else None


def gpu_label_set(sample: GpuSample) -> tuple[str, ...]:
    """Return the values of all labels of a GPU's series."""
    return (sample.uuid, sample.index, sample.vendor, *_details(sample))


def _details(sample: GpuSample) -> tuple[str, ...]:
    return (sample.name, sample.driver_version, sample.profile, sample.parent_uuid, sample.memory_kind)


def _info(sample: GpuSample) -> Value:
    value: Value = 1.0
    for label in reversed(_details(sample)):
        value = {label: value}
    return value


def _memory_high_compute_low_score(
    window: EngineWindow, thresholds: Thresholds, memory: float, utilization: float
) -> float | None:
    """Return ramp(memory) x ramp(1 - utilization) while there is demand, 0 without any, None when that is unknown."""
    running, waiting = window.points.mean("running"), window.points.mean("waiting")
    if running is None or waiting is None:
        return None
    if running + waiting == 0:
        return 0.0
    high = ramp(memory, thresholds.score.memory_ramp_start_ratio, thresholds.score.memory_ramp_end_ratio)
    low = ramp(1.0 - utilization, thresholds.score.idle_ramp_start_ratio, thresholds.score.idle_ramp_end_ratio)
    return high * low


def gpus_of(names: Sequence[str], gpus: Sequence[GpuWindow]) -> list[GpuWindow]:
    """Return the GPUs that a target's `gpus` names by uuid or index; none unless every one named is there.

    `all` means every whole device or, where a device is split, its instances.
    """
    if not names:
        return []
    if ALL_GPUS in names:
        parents = {gpu.last.parent_uuid for gpu in gpus}
        return [gpu for gpu in gpus if gpu.last.uuid not in parents]
    by_name: Mapping[str, GpuWindow] = {name: gpu for gpu in gpus for name in (gpu.last.index, gpu.last.uuid)}
    return [by_name[name] for name in names] if all(name in by_name for name in names) else []


def whole_gpus(gpus: Sequence[GpuWindow]) -> int | None:
    """Return how many GPUs these are; None of none, and where one is a part of a GPU."""
    return None if not gpus or any(gpu.last.parent_uuid for gpu in gpus) else len(gpus)


def memory_rise_ratio(context: Context) -> float | None:
    """Return the largest share of a device's memory gained over the window along a line; None without GPU memory."""
    rises = []
    for gpu in context.gpus:
        fit, total = gpu.memory_trend, gpu.last.memory_total_bytes
        if fit is None or not total:
            return None
        steady = fit.slope > 0 and fit.r2 >= context.thresholds.prediction.kv_growth_min_r2
        rises.append(fit.slope * fit.seconds / total if steady else 0.0)
    return max(rises, default=None)
