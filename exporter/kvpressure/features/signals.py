"""What an engine's page tells at all."""

from __future__ import annotations

from dataclasses import fields

from kvpressure.features.windows import EngineWindow
from kvpressure.model.samples import CacheConfig

_CACHE = tuple(field.name for field in fields(CacheConfig))


def signals_of(window: EngineWindow) -> frozenset[str]:
    """Names of the signals that some poll of the window had, and of the cache's fields that are known."""
    return window.signals().union(name for name in _CACHE if getattr(window.cache, name) is not None)
