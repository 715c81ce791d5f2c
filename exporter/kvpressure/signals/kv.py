"""The KV pool: use, capacity, growth, whether waiting demand fits, and what preemption costs."""

from __future__ import annotations

from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.family import engine_family, json_value
from kvpressure.model.samples import CacheConfig
from kvpressure.model.values import Derived, known
from kvpressure.signals.context import Context
from kvpressure.signals.lengths import typical_prompt_tokens
from kvpressure.signals.points import Line, Point
from kvpressure.signals.windows import EngineWindow

FAMILIES: Final = (
    engine_family(
        "kv_cache_usage_ratio", "Share of the KV cache used by requests, mean over the polls of the verdict."
    ),
    engine_family("kv_cache_usage_max_ratio", "Share of the KV cache used by requests, highest reading in the window."),
    engine_family("kv_capacity_tokens", "Size of the KV cache in tokens."),
    engine_family(
        "kv_free_tokens", "Free KV cache tokens at the newest poll, minus those that a declared watermark keeps free."
    ),
    engine_family("kv_tokens_per_request", "KV cache tokens per running request, over the window."),
    engine_family("kv_bytes_per_request", "KV cache bytes per running request, over the window."),
    json_value("kv_growth_tokens_per_second", "Growth of KV cache tokens in use, over the window."),
    engine_family(
        "kv_exhaustion_seconds",
        "Predicted time until a typical prompt no longer fits; absent while use does not grow steadily.",
    ),
    engine_family(
        "admission_blocked_ratio",
        "Share of the polls of the verdict in which requests waited and did not fit the free KV cache.",
    ),
    engine_family(
        "preemptions_total",
        "Requests preempted (put back into the queue and recomputed later), as the engine counts them.",
    ),
    json_value("preemptions_per_second", "Preemptions per second over the window."),
    json_value(
        "kv_preempted_tokens_per_second",
        "Tokens of preempted requests per second, as the page counts them, else preemptions times the mean "
        "tokens per running request.",
    ),
    engine_family(
        "preempted_request_ratio", "Preemptions per request served over the polls of the verdict, at most 1."
    ),
)


USAGE_ROUNDING: Final = 0.005
"""Where the share in use is rounded to a hundredth, the tokens in use may be of the layers that use less of it."""


def derive(window: EngineWindow, context: Context) -> Derived:
    """Return what the engine's page says of the KV pool."""
    capacity = window.cache.capacity_tokens
    trend = window.trend("kv_usage", window.seconds)
    free = free_tokens(window.points[-1], window.cache) if window.points else None
    per_request = _tokens_per_request(window)
    bytes_per_token = context.bytes_per_token or window.cache.bytes_per_token
    return known(
        {
            "kv_cache_usage_max_ratio": window.points.max("kv_usage"),
            "kv_capacity_tokens": capacity,
            "kv_free_tokens": free,
            "kv_tokens_per_request": per_request,
            "kv_bytes_per_request": per_request * bytes_per_token if per_request and bytes_per_token else None,
            "kv_growth_tokens_per_second": None if trend is None or capacity is None else trend.slope * capacity,
            "kv_exhaustion_seconds": _exhaustion_seconds(window, context.thresholds, free, trend),
            "preemptions_total": window.newest("preemptions"),
            "preemptions_per_second": window.points.rate("preemptions"),
            "kv_preempted_tokens_per_second": _preempted_tokens(window, per_request),
        }
    )


def _preempted_tokens(window: EngineWindow, per_request: float | None) -> float | None:
    """Return KV lost with preempted requests: as counted, else as if each had the mean (decision 0310)."""
    counted = [window.points.rate(name) for name in ("preempted_prompt_tokens", "preempted_output_tokens")]
    if None not in counted:
        return sum(rate or 0.0 for rate in counted)
    preemptions = window.points.rate("preemptions")
    return None if preemptions is None or (preemptions and per_request is None) else preemptions * (per_request or 0.0)


def _tokens_per_request(window: EngineWindow) -> float | None:
    """Return the mean KV tokens per running request; None while nothing runs or the capacity is unknown."""
    capacity = window.cache.capacity_tokens
    usage, running = window.points.mean("kv_usage"), window.points.mean("running")
    return None if capacity is None or usage is None or not running else usage * capacity / running


def _exhaustion_seconds(
    window: EngineWindow, thresholds: Thresholds, free: float | None, trend: Line | None
) -> float | None:
    """Return predicted seconds until a typical prompt no longer fits; None unless use grows steadily towards it.

    Growth counts only where a straight line explains the window (a sawtooth has a slope too) and has not ended:
    the smaller of the slopes over the window and over its second half is used.
    """
    capacity = window.cache.capacity_tokens
    if (
        capacity is None
        or free is None
        or trend is None
        or trend.slope <= 0
        or trend.r2 < thresholds.prediction.kv_growth_min_r2
    ):
        return None
    late = window.trend("kv_usage", window.seconds / 2)
    if late is None:
        return None
    slope = min(trend.slope, late.slope) * capacity
    room = free - (typical_prompt_tokens(window) or 0.0)
    if slope <= 0 or room > slope * thresholds.prediction.kv_exhaustion_horizon_seconds:
        return None
    return max(0.0, room) / slope


def kept_tokens(cache: CacheConfig) -> int:
    """Return the tokens that stay free when requests are admitted, in whole blocks (v1/core/kv_cache_manager.py)."""
    if not cache.watermark_ratio or cache.capacity_tokens is None:
        return 0
    size = cache.block_size or 1
    return int(cache.watermark_ratio * (cache.capacity_tokens // size + 1)) * size


def free_tokens(point: Point, cache: CacheConfig) -> float | None:
    """Return the tokens that no request holds, less those kept free; an engine that runs nothing keeps none."""
    usage = point.gauges.get("kv_usage")
    if usage is None or cache.capacity_tokens is None:
        return None
    kept = kept_tokens(cache) if point.gauges.get("running") else 0
    if "free_tokens" in point.gauges:
        usage = max(1.0 - point.gauges["free_tokens"] / cache.capacity_tokens, usage - USAGE_ROUNDING)
    return max(0.0, (1.0 - usage) * cache.capacity_tokens - kept)
