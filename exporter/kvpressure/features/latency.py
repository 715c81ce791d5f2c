"""Latency quantiles over the window, and how far they are above the engine's own healthy ones."""

from __future__ import annotations

from kvpressure.features.context import Context
from kvpressure.features.windows import EngineWindow, quantile
from kvpressure.model.samples import HistogramSample
from kvpressure.model.values import QUANTILES, Derived, Value, by_quantile, known

KINDS = ("e2e", "ttft", "inter_token", "queue")


def derive(window: EngineWindow, context: Context) -> Derived:
    """`latency_seconds` by kind and quantile; `latency_inflation_ratio` by kind where a baseline is known."""
    latencies: dict[str, Value] = {}
    inflation: dict[str, Value] = {}
    for kind in KINDS:
        histogram = window.histogram(kind)
        values = by_quantile(quantiles(histogram))
        if values is not None:
            latencies[kind] = values
        now, healthy = p95(histogram), context.baseline.get(kind)
        if now is not None and healthy:
            inflation[kind] = now / healthy
    return known({"latency_seconds": latencies or None, "latency_inflation_ratio": inflation or None})


def quantiles(histogram: HistogramSample | None) -> list[float] | None:
    """p50, p95 and p99 of a histogram; None for an empty one."""
    if histogram is None:
        return None
    values = [value for q in QUANTILES if (value := quantile(histogram, q)) is not None]
    return values if len(values) == len(QUANTILES) else None


def p95(histogram: HistogramSample | None) -> float | None:
    """The 95th percentile; None for an empty histogram."""
    return None if histogram is None else quantile(histogram, 0.95)
