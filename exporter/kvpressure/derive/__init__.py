"""PURE: windows to derived values, one file per family of values."""

from __future__ import annotations

from kvpressure.derive import batch, gpu, kv, latency, throughput, traffic
from kvpressure.derive.gpu import derive_gpu
from kvpressure.derive.values import Context, Derived, Value
from kvpressure.windows import EngineWindow

__all__ = ["Context", "Derived", "Value", "derive_engine", "derive_gpu"]

_FAMILIES = (batch.derive, kv.derive, latency.derive, throughput.derive, traffic.derive, gpu.derive)


def derive_engine(window: EngineWindow, context: Context) -> Derived:
    """Every derived value of one engine; what cannot be known has no key."""
    derived: Derived = {}
    for family in _FAMILIES:
        derived.update(family(window, context))
    return derived
