"""PURE: windows to derived values, one file per family of values."""

from __future__ import annotations

from kvpressure.model.values import Derived, Value, known
from kvpressure.signals import (
    batch,
    gpu,
    kv,
    latency,
    prefix_cache,
    residency,
    saturation,
    throughput,
    traffic,
    transfer,
)
from kvpressure.signals.context import Context
from kvpressure.signals.gpu import derive_gpu
from kvpressure.signals.optional import optional_groups
from kvpressure.signals.verdict_window import VerdictWindow, verdict_window
from kvpressure.signals.windows import EngineWindow

__all__ = ["Context", "Derived", "Value", "VerdictWindow", "compute", "derive_gpu"]

_FAMILIES = (
    batch.derive,
    kv.derive,
    prefix_cache.derive,
    residency.derive,
    latency.derive,
    throughput.derive,
    traffic.derive,
    traffic.derive_refusals,
    gpu.derive,
)


def compute(window: EngineWindow, context: Context) -> tuple[Derived, VerdictWindow]:
    """Return every value of one engine that is exported, and its newest polls as a verdict counts them.

    What cannot be known has no key. Of a value that is both exported and judged there is one: the verdict window's.
    """
    derived: Derived = {}
    for family in (*_FAMILIES, *(group.derive for group in optional_groups())):
        derived.update(family(window, context))
    newest = verdict_window(window, context)
    judged = {
        "kv_cache_usage_ratio": newest.kv_usage_ratio,
        "admission_blocked_ratio": newest.fit.blocked_ratio,
        "preempted_request_ratio": newest.preemption.request_ratio,
        "refused_request_ratio": newest.refused_ratio,
    }
    return derived | known(judged) | transfer.derive(newest.transfer) | saturation.derive(
        window, context, newest
    ), newest
