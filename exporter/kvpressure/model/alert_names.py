"""What alerts were called before their names carried the project's prefix: their runbooks are still asked for by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FORMERLY: Final[Mapping[str, str]] = {
    "KVPressureAllocationErrorsInLogs": "AllocationErrorsInLogs",
    "KVPressureBatchCollapsed": "EffectiveBatchCollapsed",
    "KVPressureCacheTooSmall": "KVCachePressure",
    "KVPressureDeviceMemoryRising": "DeviceMemoryRising",
    "KVPressureDeviceOutOfMemory": "DeviceOutOfMemory",
    "KVPressureEngineComputeBound": "EngineComputeBound",
    "KVPressureEngineDeferred": "EngineDeferred",
    "KVPressureEngineHostBound": "EngineHostBound",
    "KVPressureEngineNotAnswering": "EngineNotAnswering",
    "KVPressureEngineRestarting": "EngineRestarting",
    "KVPressureEngineStuck": "EngineStuck",
    "KVPressureExhaustionPredicted": "KVCacheExhaustionPredicted",
    "KVPressureExporterDown": "ExporterDown",
    "KVPressureGpuReadingsStale": "GpuReadingsStale",
    "KVPressureLatencyInflated": "RequestLatencyInflated",
    "KVPressureLimitUndeclared": "LimitUndeclared",
    "KVPressureMemoryHighComputeLow": "MemoryHighComputeLow",
    "KVPressureMemoryTargetTooHigh": "MemoryTargetTooHigh",
    "KVPressureNodeOverloaded": "NodePressureNearEngine",
    "KVPressurePreemptionThrash": "KVCachePreemptionThrash",
    "KVPressurePromptShapeShifted": "PromptShapeShifted",
    "KVPressureSequenceCapReached": "SequenceCapReached",
    "KVPressureSourceDown": "SourceDown",
    "KVPressureTargetUnreachable": "TargetUnreachable",
    "KVPressureThresholdsDiffer": "ThresholdsDiffer",
    "KVPressureThroughputPlateau": "ThroughputPlateau",
}
"""Name to the name until 0.1.0. An alert that is newer is not in it."""

NOW_CALLED: Final[Mapping[str, str]] = {old: new for new, old in FORMERLY.items()}
