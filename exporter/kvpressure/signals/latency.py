"""Latency quantiles over the window, and how far they are above the engine's own healthy ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.model.family import engine_family
from kvpressure.model.record import record
from kvpressure.model.samples import HistogramSample
from kvpressure.model.values import QUANTILES, Derived, Value, known, quantile
from kvpressure.signals.context import Context
from kvpressure.signals.windows import EngineWindow

KINDS = ("e2e", "ttft", "inter_token", "queue")
INFLATED = frozenset({"e2e", "ttft", "inter_token"})
"""A healthy queue is next to nothing: how many times longer it is now says nothing that its length does not."""

ANSWER_TOKENS = "answer_tokens"
"""Name in a baseline of the healthy p95 of output length."""


FAMILIES: Final = (
    engine_family(
        "latency_seconds",
        "Quantile of request latency over the window; kind is e2e, ttft, inter_token or queue.",
        "kind",
        "quantile",
    ),
    engine_family(
        "latency_inflation_factor",
        "p95 latency over the window divided by the engine's own healthy p95, beyond what longer answers explain; "
        "kind is e2e, ttft or inter_token.",
        "kind",
    ),
)


def derive(window: EngineWindow, context: Context) -> Derived:
    """`latency_seconds` by kind and quantile; `latency_inflation_factor` by kind where a baseline is known.

    Of end-to-end latency, what longer answers explain is no inflation.
    """
    latencies: dict[str, Value] = {}
    inflation: dict[str, Value] = {}
    longer = answers_of(window, context.baseline).growth_factor
    for kind, values in window.of_histograms(_quantiles).items():
        latencies[kind] = dict(zip(map(str, QUANTILES), values, strict=True))
        if kind in INFLATED and (healthy := context.baseline.get(kind)):
            inflation[kind] = values[1] / healthy / (longer if kind == "e2e" else 1.0)
    return known({"latency_seconds": latencies or None, "latency_inflation_factor": inflation or None})


@record
class Answers:
    """The p95 of output tokens over the window, None where nothing finished, and over the healthy one, at least 1."""

    tokens: float | None = None
    growth_factor: float = 1.0


def answers_of(window: EngineWindow, baseline: Mapping[str, float]) -> Answers:
    """Return how long answers are, and how many times as long as healthy ones; 1 where that is not known."""
    tokens, healthy = window.of_histograms(_answer_tokens), baseline.get(ANSWER_TOKENS)
    return Answers(tokens, max(1.0, tokens / healthy) if tokens is not None and healthy else 1.0)


def _answer_tokens(window: EngineWindow) -> float | None:
    return p95(window.histogram("request_output_tokens"))


def _quantiles(window: EngineWindow) -> dict[str, list[float]]:
    """p50, p95 and p99 by kind, of those of which anything was observed."""
    found = {kind: histogram for kind in KINDS if (histogram := window.histogram(kind)) is not None}
    values = {kind: [quantile(histogram, q) for q in QUANTILES] for kind, histogram in found.items()}
    return {kind: [v for v in three if v is not None] for kind, three in values.items() if None not in three}


def p95(histogram: HistogramSample | None) -> float | None:
    """Return the 95th percentile; None for an empty histogram."""
    return None if histogram is None else quantile(histogram, 0.95)
