"""What of the KV pool a waiting request may have."""

from __future__ import annotations

from kvpressure.features.windows import Point
from kvpressure.model.samples import CacheConfig


def kept_tokens(cache: CacheConfig) -> int:
    """Tokens that stay free when requests are admitted: whole blocks of all there are (v1/core/kv_cache_manager.py)."""
    if not cache.watermark_ratio or cache.capacity_tokens is None:
        return 0
    size = cache.block_size or 1
    return int(cache.watermark_ratio * (cache.capacity_tokens // size + 1)) * size


def free_tokens(point: Point, cache: CacheConfig) -> float | None:
    """Tokens that no request holds, less those that are kept free; an engine that runs nothing keeps none."""
    usage = point.gauges.get("kv_usage")
    if usage is None or cache.capacity_tokens is None:
        return None
    kept = kept_tokens(cache) if point.gauges.get("running") else 0
    return max(0.0, (1.0 - usage) * cache.capacity_tokens - kept)
