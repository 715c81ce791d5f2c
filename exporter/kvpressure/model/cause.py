"""The causes: a fixed vocabulary, because rules and dashboards of others depend on it."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """What limits an engine now; exactly one holds. What each means for others is in `catalogue`."""

    IDLE = "idle"
    HEALTHY = "healthy"
    KV_CACHE_PRESSURE = "kv_cache_pressure"
    COMPUTE_BOUND = "compute_bound"
    CONCURRENCY_BOUND = "concurrency_bound"
    HOST_BOUND = "host_bound"
    DEFERRED = "deferred"
    PAUSED = "paused"
    STUCK = "stuck"
    UNKNOWN = "unknown"
