"""Traffic shape: how long prompts, outputs and asked-for outputs are, and how bursty requests arrive."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Final

from kvpressure.model.family import engine_family
from kvpressure.model.samples import HistogramSample
from kvpressure.model.values import Derived, by_quantile, known, quantile
from kvpressure.signals.context import Context
from kvpressure.signals.points import Point, arrived_so_far
from kvpressure.signals.windows import EngineWindow

SHAPE_QUANTILES = (0.5, 0.95)
PROMPT_BOUNDS = tuple(2.0**power for power in range(9, 17))
"""512 to 65536 tokens: below, a request costs next to no KV cache."""

OUTPUT_BOUNDS = tuple(4.0**power for power in range(4, 7))
"""256, 1024 and 4096 tokens: series are counted (decision 0014)."""

BURST_BIN_SECONDS = 5.0
"""Arrivals are counted in bins this wide: in one-second bins a calm 1 request/s already looks bursty."""

_SHAPES = {
    "prompt_tokens": ("request_prompt_tokens", PROMPT_BOUNDS),
    "max_tokens": ("request_max_tokens", OUTPUT_BOUNDS),
    "output_tokens": ("request_output_tokens", OUTPUT_BOUNDS),
}


FAMILIES: Final = (
    engine_family("prompt_tokens", "Quantile of prompt length over the traffic shape window.", "quantile"),
    engine_family(
        "max_tokens", "Quantile of the max_tokens that requests asked for, over the traffic shape window.", "quantile"
    ),
    engine_family("output_tokens", "Quantile of output length over the traffic shape window.", "quantile"),
    engine_family(
        "request_prompt_tokens", "Prompt length of finished requests, interpolated to powers of two.", kind="histogram"
    ),
    engine_family(
        "request_max_tokens",
        "max_tokens that finished requests had asked for, interpolated to powers of two.",
        kind="histogram",
    ),
    engine_family(
        "request_output_tokens", "Output length of finished requests, interpolated to powers of two.", kind="histogram"
    ),
    engine_family("arrival_burstiness_factor", "Highest over mean arrivals in five-second bins of the window."),
)


def derive(window: EngineWindow, _: Context) -> Derived:
    """Quantiles over the longer shape window, cumulative power-of-two histograms, burstiness."""
    return known({"arrival_burstiness_factor": burstiness(window)}) | window.of_histograms(_shapes)


def _shapes(window: EngineWindow) -> Derived:
    longest, derived = window.cache.max_model_len, Derived()
    for family, (signal, bounds) in _SHAPES.items():
        recent, total = window.shape(signal), window.total(signal)
        if recent is not None:
            values = [value for q in SHAPE_QUANTILES if (value := token_quantile(recent, q, longest)) is not None]
            derived |= known({family: by_quantile(values, SHAPE_QUANTILES)})
        if total is not None:
            derived[signal] = powers_of_two(total, bounds, longest)
    return derived


def closed(histogram: HistogramSample, longest: int | None) -> HistogramSample:
    """`histogram` with its +Inf bucket ended at the longest request there can be.

    The last bucket of tokens ends below `max_model_len`, at a value of the series 1-2-5 in one runtime. Where the page
    does not tell that (`longest`), no request is longer than the next value of the series.
    """
    last = histogram.bounds[-2] if len(histogram.bounds) > 1 else math.inf
    if not math.isfinite(last) or last <= 0:
        return histogram
    step = 2.5 if math.isclose(last / 10.0 ** math.floor(math.log10(last)), 2.0) else 2.0
    end = float(longest) if longest is not None and last < longest < last * step else last * step
    return HistogramSample((*histogram.bounds[:-1], end, math.inf), (*histogram.counts, histogram.count), histogram.sum)


def token_quantile(histogram: HistogramSample, q: float, longest: int | None = None) -> float | None:
    """Quantile of a histogram of token counts."""
    return quantile(closed(histogram, longest), q)


def powers_of_two(histogram: HistogramSample, wanted: tuple[float, ...], longest: int | None = None) -> HistogramSample:
    """Return the histogram over the `wanted` bounds, by interpolation in its buckets; monotone in time and bound."""
    ended = closed(histogram, longest)
    counts = tuple(float(math.floor(count)) for count in (*(_count_up_to(ended, to) for to in wanted), histogram.count))
    return HistogramSample((*wanted, math.inf), counts, histogram.sum)


def _count_up_to(histogram: HistogramSample, value: float) -> float:
    bounds, counts = histogram.bounds, histogram.counts
    index = bisect_left(bounds, value)
    if not math.isfinite(bounds[index]):
        return counts[index - 1] if index else 0.0
    low, below = (bounds[index - 1], counts[index - 1]) if index else (0.0, 0.0)
    return below + (counts[index] - below) * (value - low) / (bounds[index] - low)


def burstiness(window: EngineWindow) -> float | None:
    """Highest over mean arrivals per bin of the window; None without arrivals or with fewer than four bins.

    Arrivals between two polls are what finished plus what the engine holds more than before.
    """
    bins: dict[float, float] = {}
    newest = window.t
    for t, arrived in window.each_interval(_arrivals):
        if arrived is not None:
            index = (newest - t) // BURST_BIN_SECONDS
            bins[index] = bins.get(index, 0.0) + arrived
    counts = [max(0.0, count) for count in bins.values()]
    return max(counts) * len(counts) / sum(counts) if len(counts) >= 4 and sum(counts) > 0 else None


def _arrivals(before: Point, after: Point) -> tuple[float, float | None]:
    first, last = arrived_so_far(before), arrived_so_far(after)
    return after.t, None if first is None or last is None else last - first
