"""Traffic: how long prompts, outputs and requested outputs are, how bursty requests arrive, and which are refused.

An engine sheds load: it answers requests with an error, because as many as it may have are there already.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from typing import Final

from kvpressure.model.family import engine_family, json_value
from kvpressure.model.samples import HistogramSample
from kvpressure.model.values import Derived, Value, by_quantile, known, quantile
from kvpressure.signals.context import Context
from kvpressure.signals.points import Point, Polls
from kvpressure.signals.windows import EngineWindow

SHAPE_QUANTILES = (0.5, 0.95)
PROMPT_BOUNDS = tuple(2.0**power for power in range(9, 17))
"""512 to 65536 tokens: below, a request costs next to no KV cache."""

OUTPUT_BOUNDS = tuple(4.0**power for power in range(4, 7))
"""256, 1024 and 4096 tokens: series are counted (decision 0012)."""

BURST_BIN_SECONDS = 5.0
"""Arrivals are counted in bins this wide: in one-second bins a calm 1 request/s already looks bursty."""

_SHAPES = {
    "prompt_tokens": ("request_prompt_tokens", PROMPT_BOUNDS),
    "max_tokens": ("request_max_tokens", OUTPUT_BOUNDS),
    "output_tokens": ("request_output_tokens", OUTPUT_BOUNDS),
}

FAMILIES: Final = (
    engine_family("prompt_tokens", "Quantile of prompt length over the long window.", "quantile"),
    engine_family("max_tokens", "Quantile of the requested max_tokens, over the long window.", "quantile"),
    engine_family("output_tokens", "Quantile of output length over the long window.", "quantile"),
    engine_family(
        "request_prompt_tokens", "Prompt length of finished requests, interpolated to powers of two.", kind="histogram"
    ),
    engine_family(
        "request_max_tokens", "max_tokens of finished requests, interpolated to powers of two.", kind="histogram"
    ),
    engine_family(
        "request_output_tokens", "Output length of finished requests, interpolated to powers of two.", kind="histogram"
    ),
    engine_family("arrival_burstiness_ratio", "Maximum divided by mean of arrivals in five-second bins of the window."),
    engine_family(
        "requests_refused_total",
        "Requests refused at a queue limit, as the engine counts them; absent until it refuses one.",
    ),
    json_value(
        "requests_refused_per_second",
        "Requests refused at a queue limit, per second over the window; absent until the engine refuses one.",
    ),
    engine_family(
        "refused_request_ratio",
        "Share of the requests sent that were refused at a queue limit, over the polls of the verdict.",
    ),
    engine_family(
        "failed_requests_total",
        "Requests without a whole answer: kind is error or abort, as the engine ended them (most aborts are clients "
        "that gave up), or server_error, as its server answered (5xx; Dynamo: any), the same for all engines behind an "
        "address. Kinds overlap. Absent until the first.",
        "kind",
    ),
    json_value(
        "failed_requests_per_second",
        "The same per second; and gateway: the engine's share of what Dynamo's frontend ended by an internal error or "
        "a time-out.",
        "kind",
    ),
)


def derive(window: EngineWindow, _: Context) -> Derived:
    """Return quantiles over the long window, cumulative power-of-two histograms, burstiness."""
    return known({"arrival_burstiness_ratio": burstiness(window)}) | window.of_histograms(_shapes)


def _shapes(window: EngineWindow) -> Derived:
    longest, derived = window.cache.max_model_len, Derived()
    for family, (signal, bounds) in _SHAPES.items():
        recent, total = window.long_histogram(signal), window.total(signal)
        if recent is not None:
            ended = closed(recent, longest)
            values = [value for q in SHAPE_QUANTILES if (value := quantile(ended, q)) is not None]
            derived |= known({family: by_quantile(values, SHAPE_QUANTILES)})
        if total is not None:
            derived[signal] = powers_of_two(total, bounds, longest)
    return derived


def closed(histogram: HistogramSample, longest: int | None) -> HistogramSample:
    """Return `histogram` with its +Inf bucket ended at the longest request there can be.

    The last bucket of tokens ends below `max_model_len`, at a value of the series 1-2-5 in one runtime. Where the page
    does not have that (`longest`), no request is longer than the next value of the series.
    """
    last = histogram.bounds[-2] if len(histogram.bounds) > 1 else math.inf
    if not math.isfinite(last) or last <= 0:
        return histogram
    step = _step_after(last)
    end = float(longest) if longest is not None and last < longest < last * step else last * step
    return HistogramSample(
        (*histogram.bounds[:-1], end, math.inf), (*histogram.counts, histogram.counts[-1]), histogram.sum
    )


@lru_cache(maxsize=256)
def _step_after(bound: float) -> float:
    """Return the factor to the next value of the series 1-2-5."""
    return 2.5 if math.isclose(bound / 10.0 ** math.floor(math.log10(bound)), 2.0) else 2.0


def token_quantile(histogram: HistogramSample, q: float, longest: int | None = None) -> float | None:
    """Return the quantile of a histogram of token counts."""
    return quantile(closed(histogram, longest), q)


def powers_of_two(histogram: HistogramSample, bounds: tuple[float, ...], longest: int | None = None) -> HistogramSample:
    """Return the histogram over the `bounds`, by interpolation in its buckets; monotone in time and bound."""
    ended = closed(histogram, longest)
    edges, below = (0.0, *ended.bounds), (0.0, *ended.counts)
    counts, index = [], 0
    for bound in bounds:
        index = bisect_left(ended.bounds, bound, index)
        low = edges[index]
        high = edges[index + 1]
        count = below[index]
        if high < math.inf:
            count += (below[index + 1] - count) * (bound - low) / (high - low)
        counts.append(count // 1.0)
    counts.append(histogram.counts[-1] // 1.0)
    return HistogramSample((*bounds, math.inf), tuple(counts), histogram.sum)


def burstiness(window: EngineWindow) -> float | None:
    """Return the highest over mean arrivals per bin of the window; None without arrivals or with fewer than four bins.

    Arrivals between two polls are what finished plus what the engine holds more than before.
    """
    bins, newest_t = list[float](), window.t
    before: float | None = None
    for t, arrived in window.each_interval(_arrivals):
        if arrived is None:
            continue
        number = (newest_t - t) // BURST_BIN_SECONDS
        if number == before:
            bins[-1] += arrived
        else:
            bins.append(arrived)
        before = number
    counts = [count if count > 0 else 0.0 for count in bins]
    return max(counts) * len(counts) / sum(counts) if len(counts) >= 4 and sum(counts) > 0 else None


def _arrivals(before: Point, after: Point) -> tuple[float, float | None]:
    first, last = _arrived_so_far(before), _arrived_so_far(after)
    return after.t, None if first is None or last is None else last - first


_FAILURES: Final = {"error": "failed", "abort": "aborted"}


def derive_failures(window: EngineWindow, _: Context) -> Derived:
    """Return the requests that fail a second, of an engine that has ever failed any, by kind."""
    points = window.points
    totals = {kind: total for kind, counter in _FAILURES.items() if (total := window.newest(counter))}
    rates: dict[str, Value | None] = {kind: points.rate(_FAILURES[kind]) for kind in totals}
    if len(points) > 1 and (errors := points[-1].gauges.get("server_errors")):
        # A series with a status is not there before the first request that has it.
        before, seconds = points[0].gauges.get("server_errors", 0.0), points[-1].t - points[0].t
        totals["server_error"], rates["server_error"] = errors, max(0.0, errors - before) / seconds
    if failed := points.mean("gateway_failed_per_second"):
        rates["gateway"] = failed
    if not rates:
        return {}
    return known({"failed_requests_total": totals or None, "failed_requests_per_second": known(rates) or None})


def derive_refusals(window: EngineWindow, _: Context) -> Derived:
    """Return the requests refused so far and a second, of an engine that has ever refused any."""
    if not _is_shedding_load(window):
        return {}
    return known(
        {
            "requests_refused_total": window.newest("rejected"),
            "requests_refused_per_second": window.points.rate("rejected"),
        }
    )


def _is_shedding_load(window: EngineWindow) -> bool:
    """Whether it has refused any request since it started; one without a limit, which counts 0 too, never will."""
    return bool(window.newest("rejected"))


def refused_ratio(points: Polls, window: EngineWindow) -> float | None:
    """Return the share of requests sent during `points` that it refused, each attempt counted; None where none came."""
    refused = points.growth("rejected")
    if refused is None or not _is_shedding_load(window):
        return None
    _, arrived = _arrivals(points[0], points[-1])
    if arrived is None:
        return None
    sent = refused + max(0.0, arrived)
    return refused / sent if sent else None


def _arrived_so_far(point: Point) -> float | None:
    """Return requests that ended plus those the engine holds; None when the poll lacks one of them."""
    gauges, counters = point.gauges, point.counters
    if "finished" not in counters or "running" not in gauges or "waiting" not in gauges:
        return None
    return counters["finished"] + gauges["running"] + gauges["waiting"]
