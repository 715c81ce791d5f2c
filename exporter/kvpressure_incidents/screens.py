"""The cheap first pass over the engines of a Prometheus: where in a month they may have an incident.

The server computes the pass. Every cause under which an engine loses throughput shows at least one of these, and
healthy engines seldom do (decision 0350): requests wait in a good part of the scrapes of minutes; requests are
preempted again and again; requests are refused; requests run without prompt or generated tokens; requests spend long
outside the engine. Only stretches that show one of them are read sample by sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.gateways import OF_DYNAMO, OF_EPP, Pool
from kvpressure.prometheus.names import Selection, Spelled, Target, target_of
from kvpressure.prometheus.paging import DAY_SECONDS, SHORTEST_PAGE_SECONDS, Series, Span, in_pages, joined, ranged

SHORTEST_SECONDS: Final = 120.0
"""Incidents of at least this length are looked for."""

QUEUE_STEP: Final = 300.0
QUEUE_WINDOW: Final = 420.0
"""One of the windows, a step apart, covers the whole of an incident of SHORTEST_SECONDS."""

FINE_STEP: Final = 60.0
SLACK: Final = 0.7
"""A screen's bounds are so much lower than a verdict's: it must not miss what a verdict would find."""


ScreenRows = list[tuple[list[tuple[str, str]], list[tuple[float, float]]]]
"""Labels of a target, and where a screen has a value."""


@dataclass(frozen=True, slots=True)
class Screen:
    """An expression that has a value exactly where a stretch may have an incident.

    `looks_back` is how many seconds before its time a value covers.
    """

    name: str
    expr: str
    step: float
    looks_back: float
    page_seconds: float


def screens(spelled: Spelled, selection: Selection, scrape_seconds: float, thresholds: Thresholds) -> list[Screen]:
    """Return the screens for the series in one spelling, which are scraped at least every `scrape_seconds`."""

    def chosen(name: str, window: float) -> str:
        return f"{name}{selection.and_also()}[{window:.0f}s]"

    named = spelled.named
    queue_window = max(QUEUE_WINDOW, QUEUE_STEP + 2 * scrape_seconds)
    window = max(FINE_STEP, 2 * scrape_seconds)
    coarse = (QUEUE_STEP, queue_window, 7 * DAY_SECONDS)
    fine = (FINE_STEP, window, DAY_SECONDS)
    all_screens: list[Screen] = []
    # A queue at one scrape, however long, is not enough.
    share = queued_share(thresholds, queue_window)
    if waiting := named("waiting"):
        expr = f"quantile_over_time({1 - share:.4f}, {chosen(waiting, queue_window)}) > 0"
        all_screens.append(Screen("queue", expr, *coarse))
    if preempted := named("preemptions"):
        bursts = max(1, round(thresholds.symptoms.preempting_min_burst_count))
        all_screens.append(Screen("preemptions", f"changes({chosen(preempted, queue_window)}) >= {bursts}", *coarse))
    if rejected := named("rejected"):
        all_screens.append(Screen("refusals", f"changes({chosen(rejected, queue_window)}) > 0", *coarse))
    still = [
        f"changes({chosen(name, window)}) == 0"
        for signal in ("generation_tokens", "prompt_tokens")
        if (name := named(signal))
    ]
    if still and (running := named("running")):
        # On a page of several processes labels may differ: then only their sums would match.
        runs = f"min_over_time({chosen(running, window)}) >= 1"
        all_screens.append(Screen("standstill", " and ".join((runs, *still)), *fine))
    if (outside := _outside(spelled, chosen, window, thresholds)) is not None:
        all_screens.append(Screen("outside", outside, *fine))
    return all_screens


def queued_share(thresholds: Thresholds, window: float) -> float:
    """Return the least share of a window's polls with a waiting request, where an incident is in it."""
    return SLACK * thresholds.queue.waiting_min_ratio * SHORTEST_SECONDS / window


def _outside(
    spelled: Spelled, chosen: Callable[[str, float], str], window: float, thresholds: Thresholds
) -> str | None:
    """Return the expression for requests that spend long outside the engine, by the series that the verdict uses."""

    def grew(signal: str, suffix: str = "") -> str | None:
        name = spelled.named(signal, suffix=suffix)
        return None if name is None else f"increase({chosen(name, window)})"

    signals = ("ended", "e2e_seconds", "queue_seconds", "inference_seconds")
    ended, whole, queued, inside = map(grew, signals)
    least = SLACK * thresholds.symptoms.frontend_slow_min_seconds
    if ended and whole and queued and inside:
        return f"({whole} - {queued} - {inside}) >= {least:.3f} * {ended} and {ended} > 0"
    first, started = grew("ttft", "_sum"), grew("started")
    return f"{first} >= {least:.3f} * {started} and {started} > 0" if first and started else None


def screened(server: Prometheus, screen: Screen, spelled: Spelled, page: Span) -> ScreenRows:
    """Return where one screen has a value in a page, by the labels of targets. Raises PrometheusError."""
    suspects: dict[Target, list[Span]] = {}

    def query(span: Span) -> Series:
        # With the last step, which is not over: trouble that began in it still goes on.
        steps = math.ceil(round((span.end - span.start) / screen.step, 6))
        return server.range(screen.expr, span.start, span.start + steps * screen.step, screen.step)

    for series in in_pages(page, screen.step, SHORTEST_PAGE_SECONDS, query):
        for row in series:
            spans = [Span(t - screen.looks_back, t) for t, _ in row.get("values", ())]
            target = target_of(row.get("metric", {}), spelled.table)
            suspects[target] = joined([*suspects.get(target, ()), *spans], screen.step)
    return [(list(target.labels), [(span.start, span.end) for span in spans]) for target, spans in suspects.items()]


def stretches(spans: Sequence[Span], whole: Span, lead_seconds: float, tail_seconds: float) -> list[Span]:
    """Return the stretches to read sample by sample, with time before for the baselines, and after for the end."""
    wide = [
        Span(max(whole.start, span.start - lead_seconds), min(whole.end, span.end + tail_seconds)) for span in spans
    ]
    return joined([span for span in wide if span.seconds > 0], tail_seconds)


def queued(server: Prometheus, pool: Pool, limits: Thresholds, page: Span) -> list[Span]:
    """Return where requests may have waited at a gateway for as long as an incident takes. Raises PrometheusError."""
    row = OF_EPP if pool.by_load else OF_DYNAMO
    least = queued_share(limits, QUEUE_WINDOW)
    expr = f"({pool.expr(row, f'avg_over_time({{}}[{QUEUE_WINDOW:.0f}s])')}) >= {least:.4f}"
    whole = Span(page.start, page.start + math.ceil(page.seconds / QUEUE_STEP) * QUEUE_STEP)
    rows = ranged(server, expr, whole, QUEUE_STEP)
    return joined([Span(t - QUEUE_WINDOW, t) for row in rows for t, _ in row["values"]], QUEUE_STEP)
