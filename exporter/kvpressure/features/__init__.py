"""PURE: windows to derived values, one file per family of values."""

from __future__ import annotations

from kvpressure.features import batch, gpu, kv, latency, throughput, traffic
from kvpressure.features.context import Context
from kvpressure.features.gpu import derive_gpu
from kvpressure.features.windows import EngineWindow
from kvpressure.model.values import Derived, Value

__all__ = ["Context", "Derived", "Value", "derive_engine", "derive_gpu"]

_FAMILIES = (batch.derive, kv.derive, latency.derive, throughput.derive, traffic.derive, gpu.derive)


def derive_engine(window: EngineWindow, context: Context) -> Derived:
    """Every derived value of one engine; what cannot be known has no key."""
    derived: Derived = {}
    for family in _FAMILIES:
        derived.update(family(window, context))
    return derived
