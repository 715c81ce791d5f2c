"""Which engines a Prometheus knows of, and the cheap first pass: where in a month they can have an incident.

Of an engine: how often it was scraped, and by which names there are its series. The pass is computed by the server
itself: every cause under which an engine loses throughput shows at least one of these while it holds, and healthy
engines seldom do (decision 0350): requests wait in a good part of the scrapes of minutes; requests are preempted again
and again; requests are refused; requests run and no token, of prompts or answers, moves; requests spend long outside
the engine. What shows none of them is not read sample by sample.
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
from kvpressure.tools.incidents.journal import ScreenRows
from kvpressure.tools.incidents.names import Selection, Spelled, Target, all_names, one_of, spelled, target_of
from kvpressure.tools.incidents.paging import DAY_SECONDS, SHORTEST_PAGE_SECONDS, Series, Span, in_pages, joined, ranged

FIRST_RANK: Final = "0"
PROBE_SECONDS: Final = 600.0
MAX_PROBES: Final = 100
MAX_TARGETS: Final = 10_000
MAX_LABELLINGS: Final = 200
"""Sets of label names, each compared with each: nobody relabels more often."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """A target, the name of what it runs, and the seconds between two of its scrapes."""

    target: Target
    runtime: str
    interval: float
    lacks: tuple[str, ...] = ()
    """Labels that another target has beside all of these: the same, perhaps, once it was relabelled."""

    engines: frozenset[tuple[str, str]] | None = None
    """Model and rank of those that were selected, where a selector chooses among the engines of a page."""

    @property
    def table(self) -> Table:
        """How what it runs is read."""
        return named(self.runtime).table


def names_there(server: Prometheus, selection: Selection, span: Span) -> list[Spelled]:
    """Return the runtimes' names that the Prometheus has. Raises PrometheusError, also where it has none of them."""
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
    """Every target of one spelling, by name. Raises PrometheusError."""
    running = one.named("running")
    expr = f"count_over_time({running}{selection.and_also()}[{PROBE_SECONDS:.0f}s])"
    step = max(PROBE_SECONDS, span.seconds / MAX_PROBES // 60 * 60)
    most: dict[Target, float] = {}
    engines: dict[Target, set[tuple[str, str]]] = {}

    def target_of_labels(labels: Mapping[str, str]) -> Target:
        target, table = target_of(labels, one.table), one.table
        rank = labels.get(table.engine_label, FIRST_RANK)
        engines.setdefault(target, set()).add((labels.get(table.model_label, ""), rank))
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
        raise PrometheusError("too_many", f"{text} are looked at in one go; narrow --selector, --cluster or --since")
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
    """Return what distinguishes a target from those that have all its labels, and more.

    An engine that was relabelled in between.
    """
    by_names: dict[tuple[str, ...], list[Target]] = {}
    for target in targets:
        by_names.setdefault(tuple(name for name, _ in target.labels), []).append(target)
    found: dict[Target, tuple[str, ...]] = {}
    if len(by_names) > MAX_LABELLINGS:
        return found
    for fewer, its in by_names.items():
        for more, others in by_names.items():
            if set(fewer) < set(more):
                same = {tuple(pair for pair in other.labels if pair[0] in fewer) for other in others}
                extra = set(more) - set(fewer)
                for target in its:
                    if target.labels in same:
                        found[target] = tuple(sorted({*found.get(target, ()), *extra}))
    return found


def slowest(targets: Sequence[Discovered], longest: float) -> float:
    """Seconds between two scrapes of the target that is scraped least often, of those that can be judged at all."""
    return max((one.interval for one in targets if one.interval <= longest), default=longest)


SHORTEST_SECONDS: Final = 120.0
"""Incidents of at least this length are looked for."""

QUEUE_STEP: Final = 300.0
QUEUE_WINDOW: Final = 420.0
"""One of the windows, a step apart, holds the whole of an incident of SHORTEST_SECONDS."""

FINE_STEP: Final = 60.0
SLACK: Final = 0.7
"""A screen lets through what is so much less than what a verdict needs: it must not miss what that would find."""


@dataclass(frozen=True, slots=True)
class Screen:
    """One question: an expression that has a value exactly where a stretch may hold an incident.

    `looks_back` is how many seconds before each value it speaks of.
    """

    name: str
    expr: str
    step: float
    looks_back: float
    page_seconds: float


def screens(spelled: Spelled, selection: Selection, scrape_seconds: float, limits: Thresholds) -> list[Screen]:
    """Return the questions for the series in one spelling, which are scraped every `scrape_seconds` at most."""

    def chosen(name: str, window: float) -> str:
        return f"{name}{selection.and_also()}[{window:.0f}s]"

    named = spelled.named
    queue_window = max(QUEUE_WINDOW, QUEUE_STEP + 2 * scrape_seconds)
    window = max(FINE_STEP, 2 * scrape_seconds)
    coarse = (QUEUE_STEP, queue_window, 7 * DAY_SECONDS)
    fine = (FINE_STEP, window, DAY_SECONDS)
    found: list[Screen] = []
    # A queue that is there at one scrape, however long, is not enough.
    share = queued_share(limits, queue_window)
    if waiting := named("waiting"):
        expr = f"quantile_over_time({1 - share:.4f}, {chosen(waiting, queue_window)}) > 0"
        found.append(Screen("queue", expr, *coarse))
    if preempted := named("preemptions"):
        bursts = max(1, round(limits.preempting_min_burst_count))
        found.append(Screen("preemptions", f"changes({chosen(preempted, queue_window)}) >= {bursts}", *coarse))
    if rejected := named("rejected"):
        found.append(Screen("refusals", f"changes({chosen(rejected, queue_window)}) > 0", *coarse))
    still = [
        f"changes({chosen(name, window)}) == 0"
        for signal in ("generation_tokens", "prompt_tokens")
        if (name := named(signal))
    ]
    if still and (running := named("running")):
        # On a page of several processes these may come with other labels: then it is the target's own sum that counts.
        runs = f"min_over_time({chosen(running, window)}) >= 1"
        found.append(Screen("standstill", " and ".join((runs, *still)), *fine))
    if (outside := _outside(spelled, chosen, window, limits)) is not None:
        found.append(Screen("outside", outside, *fine))
    return found


def queued_share(limits: Thresholds, window: float) -> float:
    """Return the share of a window's polls in which somebody waits at least, where an incident is in it."""
    return SLACK * limits.waiting_min_ratio * SHORTEST_SECONDS / window


def _outside(spelled: Spelled, chosen: Callable[[str, float], str], window: float, limits: Thresholds) -> str | None:
    """Mean seconds of a request outside the engine, by the sums and counts that the verdict uses too."""

    def grew(signal: str, suffix: str = "") -> str | None:
        name = spelled.named(signal, suffix=suffix)
        return None if name is None else f"increase({chosen(name, window)})"

    signals = ("ended", "e2e_seconds", "queue_seconds", "inference_seconds")
    ended, whole, queued, inside = map(grew, signals)
    least = SLACK * limits.frontend_slow_min_seconds
    if ended and whole and queued and inside:
        return f"({whole} - {queued} - {inside}) >= {least:.3f} * {ended} and {ended} > 0"
    first, started = grew("ttft", "_sum"), grew("started")
    return f"{first} >= {least:.3f} * {started} and {started} > 0" if first and started else None


def screened(server: Prometheus, screen: Screen, spelled: Spelled, page: Span) -> ScreenRows:
    """Where one screen has a value in a page, by the labels of targets. Raises PrometheusError."""
    found: dict[Target, list[Span]] = {}

    def query(span: Span) -> Series:
        # The last step is queried although it is not over: what began within it is going on now.
        steps = math.ceil(round((span.end - span.start) / screen.step, 6))
        return server.range(screen.expr, span.start, span.start + steps * screen.step, screen.step)

    for series in in_pages(page, screen.step, SHORTEST_PAGE_SECONDS, query):
        for one in series:
            spans = [Span(t - screen.looks_back, t) for t, _ in one.get("values", ())]
            target = target_of(one.get("metric", {}), spelled.table)
            found[target] = joined([*found.get(target, ()), *spans], screen.step)
    return [(list(target.labels), [(span.start, span.end) for span in its]) for target, its in found.items()]


def stretches(spans: Sequence[Span], whole: Span, lead_seconds: float, tail_seconds: float) -> list[Span]:
    """Return what is read sample by sample.

    With time before, for what is healthy, and after it, for the end to show.
    """
    wide = [Span(max(whole.start, one.start - lead_seconds), min(whole.end, one.end + tail_seconds)) for one in spans]
    return joined([one for one in wide if one.seconds > 0], tail_seconds)
