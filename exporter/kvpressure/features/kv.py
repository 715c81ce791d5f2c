"""The KV pool: use, capacity, growth, whether waiting demand fits, and what preemption costs."""

from __future__ import annotations

from kvpressure.features.context import Context
from kvpressure.features.windows import EngineWindow, Line, Point, line
from kvpressure.model.values import Derived, known

RECENT_SECONDS = 10.0
RECENT_STARTS = 4.0
"""The newest starts say what prompts look like before any of them has finished; fewer than this many are chance."""


def derive(window: EngineWindow, context: Context) -> Derived:
    """Everything of the KV pool that the engine's own page tells."""
    capacity = window.cache.capacity_tokens
    usage, last_usage = window.mean("kv_usage"), window.last("kv_usage")
    trend = None if capacity is None else growth(window, capacity, window.seconds)
    free = None if capacity is None or last_usage is None else (1.0 - last_usage) * capacity
    per_request = tokens_per_request(window)
    bytes_per_token = context.bytes_per_token or window.cache.bytes_per_token
    return known(
        {
            "kv_cache_usage_ratio": usage,
            "kv_cache_usage_ratio_max": window.max("kv_usage"),
            "kv_capacity_tokens": capacity,
            "kv_free_tokens": free,
            "kv_tokens_per_request": per_request,
            "kv_bytes_per_request": per_request * bytes_per_token if per_request and bytes_per_token else None,
            "kv_growth_tokens_per_second": None if trend is None else trend.slope,
            "kv_exhaustion_seconds": exhaustion_seconds(window, context),
            "admission_blocked_ratio": admission_blocked_ratio(window),
            "preemptions_per_second": window.rate("preemptions"),
            "preempted_request_ratio": preempted_request_ratio(window),
        }
    )


def typical_prompt_tokens(window: EngineWindow) -> float | None:
    """Mean prompt length of the requests that want to get in, in tokens.

    The larger of what finished in the window and what started most recently: prompt lengths are reported when
    requests finish, so at the onset of long prompts the finished ones lag; and when admission is blocked, the last
    to start may have done so a while ago. With neither, the mean since the server started.
    """
    finished = _ratio(window.delta("finished_prompt_tokens"), window.delta("finished_prompts"))
    started = window.per_event("prompt_tokens", "started", least=RECENT_STARTS, seconds=RECENT_SECONDS)
    means = [mean for mean in (finished, started) if mean is not None]
    if means:
        return max(means)
    newest = window.points[-1].counters if window.points else {}
    return _ratio(newest.get("finished_prompt_tokens"), newest.get("finished_prompts"))


def blocked(point: Point, capacity_tokens: float, prompt_tokens: float | None) -> bool | None:
    """The fit test: is demand waiting that does not fit in the free tokens? None when that cannot be told."""
    waiting = point.gauges.get("waiting")
    if waiting is None:
        return None
    waiting -= point.gauges.get("waiting_deferred", 0.0)
    usage = point.gauges.get("kv_usage")
    if waiting <= 0:
        return False
    if usage is None or prompt_tokens is None:
        return None
    return (1.0 - usage) * capacity_tokens < prompt_tokens


def admission_blocked_ratio(window: EngineWindow) -> float | None:
    """Share of the window's polls in which the fit test fails; None when no poll could be tested."""
    capacity = window.cache.capacity_tokens
    if capacity is None:
        return None
    prompt = typical_prompt_tokens(window)
    tests = [test for point in window.points if (test := blocked(point, capacity, prompt)) is not None]
    return sum(tests) / len(tests) if tests else None


def tokens_per_request(window: EngineWindow) -> float | None:
    """Mean KV tokens held per running request; None while nothing runs or the capacity is unknown."""
    capacity, usage, running = window.cache.capacity_tokens, window.mean("kv_usage"), window.mean("running")
    return None if capacity is None or usage is None or not running else usage * capacity / running


def growth(window: EngineWindow, capacity_tokens: float, seconds: float) -> Line | None:
    """Trend of the used tokens over the last `seconds` of the window, by least squares."""
    since = window.t - seconds
    usages = ((point.t, point.gauges.get("kv_usage")) for point in window.points if point.t >= since)
    return line([(t, usage * capacity_tokens) for t, usage in usages if usage is not None])


def exhaustion_seconds(window: EngineWindow, context: Context) -> float | None:
    """Predicted seconds until a typical prompt no longer fits; None unless use grows steadily towards it.

    Growth counts only where a straight line explains the window (a sawtooth has a slope too) and has not ended:
    the smaller of the slopes over the window and over its second half is used.
    """
    capacity, usage = window.cache.capacity_tokens, window.last("kv_usage")
    if capacity is None or usage is None:
        return None
    fit = growth(window, capacity, window.seconds)
    late = growth(window, capacity, window.seconds / 2)
    if fit is None or late is None or fit.r2 < context.thresholds.kv_growth_min_r2:
        return None
    slope = min(fit.slope, late.slope)
    room = (1.0 - usage) * capacity - (typical_prompt_tokens(window) or 0.0)
    if slope <= 0 or room > slope * context.thresholds.kv_exhaustion_horizon_seconds:
        return None
    return max(0.0, room) / slope


def preempted_request_ratio(window: EngineWindow) -> float | None:
    """Preemptions per request served in the window, at most 1: those running at its start and those started since."""
    preempted, started = window.delta("preemptions"), window.delta("started")
    if preempted is None or started is None:
        return None
    served = started + next(iter(window.series("running")), 0.0)
    return min(1.0, preempted / served) if served > 0 else float(preempted > 0)


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None
