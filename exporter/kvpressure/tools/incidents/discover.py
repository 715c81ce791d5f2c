"""The engines that a Prometheus has series of, and the cheap first pass: where in a month they may have an incident.

The server computes the pass. Every cause under which an engine loses throughput shows at least one of these, and
healthy engines seldom do (decision 0350): requests wait in a good part of the scrapes of minutes; requests are
preempted again and again; requests are refused; requests run without prompt or generated tokens; requests spend long
outside the engine. Only stretches that show one of them are read sample by sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.runtimes.registry import ASSUMED, TABLES, named
from kvpressure.runtimes.table import Table
from kvpressure.tools.incidents.answers import PrometheusError
from kvpressure.tools.incidents.client import Prometheus
from kvpressure.tools.incidents.names import (
    Json,
    ScreenRows,
    Selection,
    Spelled,
    Target,
    all_names,
    labelled_engine,
    one_of,
    rank_of,
    spelled,
    target_of,
)
from kvpressure.tools.incidents.paging import DAY_SECONDS, SHORTEST_PAGE_SECONDS, Series, Span, in_pages, joined, ranged

PROBE_SECONDS: Final = 600.0
MAX_PROBES: Final = 100
MAX_TARGETS: Final = 10_000
MAX_LABELLINGS: Final = 200
"""Sets of label names, each compared with each; far more than relabelling produces."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """A target, the name of its runtime, and its scrape interval."""

    target: Target
    runtime: str
    interval: float
    lacks: tuple[str, ...] = ()
    """Labels that another target has besides all of these: perhaps the same target, relabelled."""

    engines: frozenset[tuple[str, str]] | None = None
    """Model and rank of the selected engines, where a selector chooses among the engines of a page."""

    @property
    def table(self) -> Table:
        """The runtime's series."""
        return named(self.runtime).table

    def selected(self, found: Json) -> Json:
        """Return the outcome without the engines of a page that the selector does not match: pages are read whole."""
        if (engines := self.engines) is None:
            return found

        def kept(rows: Sequence[Json]) -> list[Json]:
            return [one for one in rows if (one["model_name"], rank_of(one["engine"])) in engines]

        others = [kept(listed) for listed in found["others"]]
        return {**found, "incidents": kept(found["incidents"]), "unjudged": kept(found["unjudged"]), "others": others}


def names_there(server: Prometheus, selection: Selection, span: Span) -> list[Spelled]:
    """Return the runtimes' series names that the Prometheus has. Raises PrometheusError, also without any of them."""
    known = all_names(TABLES)
    present = server.label_values("__name__", [selection.and_also(one_of(known))], span.start, span.end)
    found = spelled(TABLES, known.intersection(present))
    if found:
        return found
    chosen = f" with {selection.matchers}" if selection.matchers else ""
    raise PrometheusError(
        "nothing",
        f"the Prometheus has no series of an engine ({ASSUMED.table.prefix}...){chosen} in that time; "
        "check --cluster, --selector, --since and --until, and that the engines are scraped",
    )


def targets_there(server: Prometheus, one: Spelled, selection: Selection, span: Span) -> list[Discovered]:
    """Return the targets of one spelling, by name. Raises PrometheusError."""
    running = one.named("running")
    expr = f"count_over_time({running}{selection.and_also()}[{PROBE_SECONDS:.0f}s])"
    step = max(PROBE_SECONDS, span.seconds / MAX_PROBES // 60 * 60)
    most: dict[Target, float] = {}
    engines: dict[Target, set[tuple[str, str]]] = {}

    def target_of_labels(labels: Mapping[str, str]) -> Target:
        target = target_of(labels, one.table)
        engines.setdefault(target, set()).add(labelled_engine(labels, one.table))
        return target

    # Both ends and every step between: an engine that lived for less than a step is missed, so steps are short.
    for found in ranged(server, expr, span, step, step):
        target = target_of_labels(found["metric"])
        count = max((value for _, value in found.get("values", ()) if 0 < value < math.inf), default=0.0)
        most[target] = max(most.get(target, 0.0), count)
    for labels in server.series([f"{running}{selection.and_also()}"], span.start, span.end):
        most.setdefault(target_of_labels(labels), 0.0)
    if len(most) > MAX_TARGETS:
        text = f"the Prometheus knows of {len(most):,} engines' pages in that time, more than the {MAX_TARGETS:,} that"
        raise PrometheusError("too_many", f"{text} are read at once; narrow --selector, --cluster or --since")
    usual = sorted(PROBE_SECONDS / count for count in most.values() if count) or [PROBE_SECONDS]
    middle = usual[len(usual) // 2]
    without = lacking(most)
    chooses = selection.names(one.table.engine_label, one.table.model_label)
    return [
        Discovered(
            target,
            one.table.runtime,
            PROBE_SECONDS / count if count else middle,
            without.get(target, ()),
            frozenset(engines[target]) if chooses else None,
        )
        for target, count in sorted(most.items())
    ]


def lacking(targets: Iterable[Target]) -> dict[Target, tuple[str, ...]]:
    """Return the labels that targets lack and others with all their labels have: perhaps the same ones, relabelled."""
    by_names: dict[tuple[str, ...], list[Target]] = {}
    for target in targets:
        by_names.setdefault(tuple(name for name, _ in target.labels), []).append(target)
    found: dict[Target, tuple[str, ...]] = {}
    if len(by_names) > MAX_LABELLINGS:
        return found
    for fewer, own in by_names.items():
        for more, others in by_names.items():
            if set(fewer) < set(more):
                same = {tuple(pair for pair in other.labels if pair[0] in fewer) for other in others}
                extra = set(more) - set(fewer)
                for target in own:
                    if target.labels in same:
                        found[target] = tuple(sorted({*found.get(target, ()), *extra}))
    return found


def slowest(targets: Sequence[Discovered], longest: float) -> float:
    """Return the longest scrape interval of the targets, of those that are short enough to judge."""
    return max((one.interval for one in targets if one.interval <= longest), default=longest)


SHORTEST_SECONDS: Final = 120.0
"""Incidents of at least this length are looked for."""

QUEUE_STEP: Final = 300.0
QUEUE_WINDOW: Final = 420.0
"""One of the windows, a step apart, covers the whole of an incident of SHORTEST_SECONDS."""

FINE_STEP: Final = 60.0
SLACK: Final = 0.7
"""A screen's bounds are so much lower than a verdict's: it must not miss what a verdict would find."""


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
    found: list[Screen] = []
    # A queue at one scrape, however long, is not enough.
    share = queued_share(thresholds, queue_window)
    if waiting := named("waiting"):
        expr = f"quantile_over_time({1 - share:.4f}, {chosen(waiting, queue_window)}) > 0"
        found.append(Screen("queue", expr, *coarse))
    if preempted := named("preemptions"):
        bursts = max(1, round(thresholds.symptoms.preempting_min_burst_count))
        found.append(Screen("preemptions", f"changes({chosen(preempted, queue_window)}) >= {bursts}", *coarse))
    if rejected := named("rejected"):
        found.append(Screen("refusals", f"changes({chosen(rejected, queue_window)}) > 0", *coarse))
    still = [
        f"changes({chosen(name, window)}) == 0"
        for signal in ("generation_tokens", "prompt_tokens")
        if (name := named(signal))
    ]
    if still and (running := named("running")):
        # On a page of several processes labels may differ: then only their sums would match.
        runs = f"min_over_time({chosen(running, window)}) >= 1"
        found.append(Screen("standstill", " and ".join((runs, *still)), *fine))
    if (outside := _outside(spelled, chosen, window, thresholds)) is not None:
        found.append(Screen("outside", outside, *fine))
    return found


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
    found: dict[Target, list[Span]] = {}

    def query(span: Span) -> Series:
        # With the last step, which is not over: trouble that began in it still goes on.
        steps = math.ceil(round((span.end - span.start) / screen.step, 6))
        return server.range(screen.expr, span.start, span.start + steps * screen.step, screen.step)

    for series in in_pages(page, screen.step, SHORTEST_PAGE_SECONDS, query):
        for one in series:
            spans = [Span(t - screen.looks_back, t) for t, _ in one.get("values", ())]
            target = target_of(one.get("metric", {}), spelled.table)
            found[target] = joined([*found.get(target, ()), *spans], screen.step)
    return [(list(target.labels), [(span.start, span.end) for span in spans]) for target, spans in found.items()]


def stretches(spans: Sequence[Span], whole: Span, lead_seconds: float, tail_seconds: float) -> list[Span]:
    """Return the stretches to read sample by sample, with time before for the baselines, and after for the end."""
    wide = [Span(max(whole.start, one.start - lead_seconds), min(whole.end, one.end + tail_seconds)) for one in spans]
    return joined([one for one in wide if one.seconds > 0], tail_seconds)
