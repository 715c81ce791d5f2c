"""PURE: windows to derived values, one file per family of values."""

from __future__ import annotations

from kvpressure.features import batch, gpu, kv, latency, refusals, saturation, throughput, traffic
from kvpressure.features.context import Context
from kvpressure.features.gpu import derive_gpu
from kvpressure.features.recent import Recent, count
from kvpressure.features.windows import EngineWindow
from kvpressure.model.values import Derived, Value, known

__all__ = ["Context", "Derived", "Recent", "Value", "compute", "derive_gpu"]

_FAMILIES = (batch.derive, kv.derive, latency.derive, throughput.derive, traffic.derive, refusals.derive, gpu.derive)


def compute(window: EngineWindow, context: Context) -> tuple[Derived, Recent]:
    """Every feature of one engine: the families that are exported, and the newest polls as a verdict counts them.

    What cannot be known has no key. Of a value that is both exported and judged there is one: the verdict window's.
    """
    derived: Derived = {}
    for family in _FAMILIES:
        derived.update(family(window, context))
    recent = count(window, context)
    return derived | known(_judged(recent)) | saturation.derive(window, context, recent), recent


def _judged(recent: Recent) -> dict[str, Value | None]:
    return {
        "kv_cache_usage_ratio": recent.usage,
        "admission_blocked_ratio": recent.blocked_ratio,
        "preempted_request_ratio": recent.preempted_ratio,
        "refused_request_ratio": recent.refused_ratio,
    }
