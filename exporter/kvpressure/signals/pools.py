"""Pools beside that of tokens: hybrid models keep states (Mamba) and sliding windows in pools of their own."""

from __future__ import annotations

from typing import Final

from kvpressure.model.record import record
from kvpressure.signals.points import Polls

POOLS: Final = {"state_usage": "Mamba states", "window_usage": "sliding windows"}
"""Gauges, and what their pools hold."""


@record
class OtherPool:
    """The fullest pool beside that of tokens: `name` is what it holds, "" where there is none; `usage_ratio` a mean."""

    name: str = ""
    usage_ratio: float = 0.0


def other_pool(points: Polls) -> OtherPool:
    """Return the fullest of the pools that the page tells apart."""
    means = [(value, name) for gauge, name in POOLS.items() if (value := points.mean(gauge)) is not None]
    usage, name = max(means, default=(0.0, ""))
    return OtherPool(name, usage)
