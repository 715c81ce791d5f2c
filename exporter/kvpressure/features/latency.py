"""Latency quantiles over the window, and how far they are above the engine's own healthy ones."""

from __future__ import annotations

from collections.abc import Mapping

from kvpressure.features.context import Context
from kvpressure.features.windows import EngineWindow
from kvpressure.model.samples import HistogramSample
from kvpressure.model.values import QUANTILES, Derived, Value, by_quantile, known, quantile

KINDS = ("e2e", "ttft", "inter_token", "queue")
ANSWER_TOKENS = "answer_tokens"
"""Name in a baseline of the healthy p95 of output length."""


def derive(window: EngineWindow, context: Context) -> Derived:
    """`latency_seconds` by kind and quantile; `latency_inflation_ratio` by kind where a baseline is known.

    Of end-to-end latency, what longer answers explain is no inflation.
    """
    latencies: dict[str, Value] = {}
    inflation: dict[str, Value] = {}
    longer = answer_growth(p95(window.histogram("request_output_tokens")), context.baseline)
    for kind in KINDS:
        histogram = window.histogram(kind)
        values = by_quantile(quantiles(histogram))
        if values is not None:
            latencies[kind] = values
        now, healthy = p95(histogram), context.baseline.get(kind)
        if now is not None and healthy:
            inflation[kind] = now / healthy / (longer if kind == "e2e" else 1.0)
    return known({"latency_seconds": latencies or None, "latency_inflation_ratio": inflation or None})


def answer_growth(answer_tokens: float | None, baseline: Mapping[str, float]) -> float:
    """How many times as long as healthy ones answers are now (p95 of their tokens), at least 1; 1 where not known."""
    healthy = baseline.get(ANSWER_TOKENS)
    return max(1.0, answer_tokens / healthy) if answer_tokens is not None and healthy else 1.0


def quantiles(histogram: HistogramSample | None) -> list[float] | None:
    """p50, p95 and p99 of a histogram; None for an empty one."""
    if histogram is None:
        return None
    values = [value for q in QUANTILES if (value := quantile(histogram, q)) is not None]
    return values if len(values) == len(QUANTILES) else None


def p95(histogram: HistogramSample | None) -> float | None:
    """The 95th percentile; None for an empty histogram."""
    return None if histogram is None else quantile(histogram, 0.95)
