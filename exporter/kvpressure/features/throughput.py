"""Tokens per second, and whether more demand still buys more of them."""

from __future__ import annotations

from kvpressure.features.batch import never_decoded
from kvpressure.features.context import Context
from kvpressure.features.windows import EngineWindow, Point
from kvpressure.model.values import Derived, Value, known


def derive(window: EngineWindow, context: Context) -> Derived:
    """`tokens_per_second` by kind, `throughput_plateau`, and what the engine says that its GPUs are given to do."""
    rates = {"prompt": window.rate("prompt_tokens"), "generation": window.rate("generation_tokens")}
    tokens: dict[str, Value] = {kind: rate for kind, rate in rates.items() if rate is not None}
    work = known(
        {
            "estimated_flops_per_second": _estimated(window, "estimated_flops"),
            "estimated_memory_bytes_per_second": _estimated(window, "estimated_read_bytes", "estimated_write_bytes"),
        }
    )
    return known({"tokens_per_second": tokens or None, "throughput_plateau": plateau(window, context)}) | work


def _estimated(window: EngineWindow, *counters: str) -> float | None:
    """Growth of the `counters` together, per second; None where one of them has never moved: it is switched off."""
    rates = [window.rate(counter) if window.newest(counter) else None for counter in counters]
    found = [rate for rate in rates if rate is not None]
    return sum(found) if len(found) == len(counters) else None


def plateau(window: EngineWindow, context: Context) -> float | None:
    """1 when demand grows or queues while generated tokens per second do not grow; compares the window's halves.

    None until both halves hold at least half of their polls' time span, and for a model that generates nothing.
    """
    if never_decoded(window):
        return None
    middle = window.t - window.seconds / 2
    early = [point for point in window.points if point.t <= middle]
    late = [point for point in window.points if point.t >= middle]
    before, after = _tokens_per_second(early), _tokens_per_second(late)
    demand_before, demand_after = _demand(early), _demand(late)
    if before is None or after is None or demand_before is None or demand_after is None:
        return None
    if early[-1].t - early[0].t < window.seconds / 4:
        return None
    limits = context.thresholds
    queued = _mean(late, "waiting") >= 1.0
    rising = demand_after - demand_before >= max(1.0, limits.plateau_demand_growth_min_ratio * demand_before)
    flat = after <= before * (1.0 + limits.plateau_token_growth_max_ratio)
    return float((queued or rising) and flat)


def _tokens_per_second(points: list[Point]) -> float | None:
    known_points = [point for point in points if "generation_tokens" in point.counters]
    if len(known_points) < 2:
        return None
    first, last = known_points[0], known_points[-1]
    return (last.counters["generation_tokens"] - first.counters["generation_tokens"]) / (last.t - first.t)


def _demand(points: list[Point]) -> float | None:
    if not any("running" in point.gauges and "waiting" in point.gauges for point in points):
        return None
    return _mean(points, "running") + _mean(points, "waiting")


def _mean(points: list[Point], gauge: str) -> float:
    values = [point.gauges[gauge] for point in points if gauge in point.gauges]
    return sum(values) / len(values) if values else 0.0
