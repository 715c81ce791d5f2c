"""PURE: windows to derived values, one file per family of values; the registry of all signals, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.values import Derived, Value
from kvpressure.signals import batch, gpu, kv, latency, prefix_cache, residency, saturation, throughput, traffic
from kvpressure.signals.context import Context
from kvpressure.signals.eviction import NOTHING_EVICTED, Eviction
from kvpressure.signals.gpu import derive_gpu
from kvpressure.signals.optional import optional_groups
from kvpressure.signals.reading import Reading, judged
from kvpressure.signals.stall import SERVED, Stall
from kvpressure.signals.verdict_window import VerdictWindow, verdict_window
from kvpressure.signals.windows import EngineWindow

__all__ = ["Context", "Derived", "Reading", "Value", "VerdictWindow", "compute", "derive_gpu"]

OF_WINDOW: Final[tuple[Callable[[EngineWindow, Context], Derived], ...]] = (
    batch.derive,
    kv.derive,
    prefix_cache.derive,
    residency.derive,
    latency.derive,
    throughput.derive,
    traffic.derive,
    traffic.derive_refusals,
    traffic.derive_failures,
    gpu.derive,
)
"""The signals of the window alone, in their order; those of optional sources come after them."""

OF_VERDICT: Final = (judged, saturation.derive)
"""The signals of the newest polls as a verdict counts them, in their order; what an engine remembers comes after."""


def compute(
    window: EngineWindow,
    context: Context,
    remembered: Sequence[Callable[[Reading], Derived]] = (),
    evicted: Callable[[EngineWindow, Derived, Thresholds], Eviction] | None = None,
    stall: Stall = SERVED,
) -> Reading:
    """Return every value of one engine that is exported, and its newest polls as a verdict counts them.

    What cannot be known has no key. `remembered` are the signals that are kept from poll to poll, in their order: each
    finds what those before it have found in the reading. `evicted` gives what is computed again by what is remembered
    and the values of the window, `stall` is since when nobody has been served.
    """
    derived: Derived = {}
    for of_window in OF_WINDOW:
        derived.update(of_window(window, context))
    for group in optional_groups():
        derived.update(group.derive(window, context))
    eviction = NOTHING_EVICTED if evicted is None else evicted(window, derived, context.thresholds)
    reading = Reading(window, context, derived, verdict_window(window, context, eviction, stall))
    for of_reading in (*OF_VERDICT, *remembered):
        derived.update(of_reading(reading))
    return reading
