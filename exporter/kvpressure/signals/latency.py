"""Latency over the window, how far it is above the engine's own healthy one, and what of it is outside the engine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from kvpressure.model.family import engine_family
from kvpressure.model.record import record
from kvpressure.model.samples import HistogramSample
from kvpressure.model.values import QUANTILES, Derived, Value, by_quantile, known, quantile
from kvpressure.signals.context import Context
from kvpressure.signals.points import Polls
from kvpressure.signals.windows import EngineWindow

KINDS = ("e2e", "ttft", "inter_token", "queue")
INFLATED = frozenset({"e2e", "ttft", "inter_token"})
"""A healthy queue is next to nothing: how many times longer it is now says nothing that its length does not."""

ANSWER_TOKENS = "answer_tokens"
"""Name in a baseline of the healthy p95 of output length."""
COUNTED_ALIKE_RATIO: Final = 0.05
"""Of the requests, that two histograms may differ by and still be of the same ones."""
MEAN_GAP = "inter_token_mean"
"""Name in a baseline of the healthy mean time between two tokens, which a histogram's sum gives exactly."""

OBSERVED: Final = "latency_observed"
"""Key of the latencies by kind since the engine is watched, as histograms: not in the JSON, no series of their own."""

FAMILIES: Final = (
    engine_family(
        "latency_seconds",
        "Quantile of request latency over the window, sum and count since it is watched; kind is e2e, ttft, "
        "inter_token or queue.",
        "kind",
        "quantile",
        observed=OBSERVED,
    ),
    engine_family(
        "latency_inflation_ratio",
        "p95 latency over the window divided by the engine's own healthy p95, corrected for longer answers; "
        "kind is e2e, ttft or inter_token.",
        "kind",
    ),
)


def derive(window: EngineWindow, context: Context) -> Derived:
    """Return `latency_seconds` by kind and quantile; `latency_inflation_ratio` by kind where a baseline is known.

    With the quantiles come the latencies since the engine is watched.

    Of end-to-end latency, what longer answers explain is no inflation; they explain no time in the queue.
    """
    quantiles = window.of_histograms(_quantiles)
    latencies: dict[str, Value] = {kind: by_quantile(three) for kind, three in quantiles.items()}
    healthy = {kind: context.baseline[kind] for kind in quantiles if kind in INFLATED and context.baseline.get(kind)}
    inflation: dict[str, Value] = {kind: quantiles[kind][1] / usual for kind, usual in healthy.items()}
    if "e2e" in healthy:
        whole, longer = quantiles["e2e"][1], answers_of(window, context.baseline).growth_factor
        queued = min(whole, quantiles["queue"][1]) if "queue" in quantiles else 0.0
        inflation["e2e"] = (queued + (whole - queued) / longer) / healthy["e2e"]
    derived = known({"latency_seconds": latencies or None, "latency_inflation_ratio": inflation or None})
    if observed := window.of_histograms(_observed):
        derived[OBSERVED] = observed
    return derived


def _observed(window: EngineWindow) -> dict[str, Value]:
    return {kind: total for kind in KINDS if (total := window.total(kind)) is not None}


@record
class Answers:
    """The p95 of output tokens over the window, None where nothing finished, and over the healthy one, at least 1."""

    tokens: float | None = None
    growth_factor: float = 1.0


def slowdown_factor(between: HistogramSample | None, baseline: Mapping[str, float]) -> float | None:
    """Return p95 of the time between tokens over the healthy one, as far as buckets or sums prove it; None if unknown.

    A p95 that is interpolated within one bucket proves nothing: 2 % of the gaps on the other side of a bound move it
    by as much as the bucket is wide. Proven is what lies between the bounds, or what the mean has grown by.
    """
    latency, healthy = p95(between), baseline.get("inter_token")
    if between is None or latency is None or not healthy:
        return None
    usual = baseline.get(MEAN_GAP)
    by_mean = between.sum / between.count / usual if usual else 1.0
    at_least = (0.0, *between.bounds)[bisect_left(between.bounds, latency)]
    at_most = between.bounds[bisect_left(between.bounds, healthy)]
    return min(latency / healthy, max(1.0, by_mean, at_least / at_most))


def answers_of(window: EngineWindow, baseline: Mapping[str, float]) -> Answers:
    """Return how long answers are, and how many times as long as healthy ones; 1 where that is not known."""
    tokens, healthy = window.of_histograms(_answer_tokens), baseline.get(ANSWER_TOKENS)
    return Answers(tokens, max(1.0, tokens / healthy) if tokens is not None and healthy else 1.0)


def _answer_tokens(window: EngineWindow) -> float | None:
    return p95(window.histogram("request_output_tokens"))


def _quantiles(window: EngineWindow) -> dict[str, list[float]]:
    """Return p50, p95 and p99 by kind, of those of which anything was observed."""
    histograms = {kind: histogram for kind in KINDS if (histogram := window.histogram(kind)) is not None}
    values = {kind: [quantile(histogram, q) for q in QUANTILES] for kind, histogram in histograms.items()}
    return {kind: [v for v in three if v is not None] for kind, three in values.items() if None not in three}


def p95(histogram: HistogramSample | None) -> float | None:
    """Return the 95th percentile; None for an empty histogram."""
    return None if histogram is None else quantile(histogram, 0.95)


@record
class TimeOutsideEngine:
    """Mean `seconds` of a request outside the engine, and their share `ratio` of its time.

    That of `whole` requests is exact: their time in the server, in the queue and in the batch are all counted when they
    end. Else it is of the time to first token, counted when first tokens come: a mean of slightly other requests.
    """

    seconds: float
    ratio: float
    whole: bool


def time_outside_engine(points: Polls, window: EngineWindow, seconds: float) -> TimeOutsideEngine | None:
    """Return that of the requests that ended during `points`, or of first tokens in the last `seconds`.

    The latter where the runtime does not count the time in the batch. None when nothing ended, or not known, or where
    times in the server and in the queue are not those of the same requests.
    """
    inside = points.growth("inference_seconds")
    if inside is None:
        return _of_first_tokens(window, seconds)
    ended, all_seconds = points.growth("ended"), points.growth("e2e_seconds")
    queued = points.growth("queue_seconds")
    if not ended or not all_seconds or queued is None:
        return None
    counted = points.growth("queued")
    if counted is not None and abs(counted - ended) > max(1.0, COUNTED_ALIKE_RATIO * ended):
        return None  # those that did not wait have no time in the queue here: the difference is of other requests
    outside = max(0.0, all_seconds - queued - inside)
    return TimeOutsideEngine(outside / ended, outside / all_seconds, whole=True)


def _of_first_tokens(window: EngineWindow, seconds: float) -> TimeOutsideEngine | None:
    ttft, queue = window.histogram("ttft", seconds), window.histogram("queue", seconds)
    prefill, prefilled = window.points.growth("prefill_seconds"), window.points.growth("prefilled")
    if ttft is None or queue is None or prefill is None or not prefilled:
        return None
    whole = ttft.sum / ttft.count
    outside = max(0.0, whole - queue.sum / queue.count - prefill / prefilled)
    return TimeOutsideEngine(outside, outside / whole if whole > 0 else 0.0, whole=False)
