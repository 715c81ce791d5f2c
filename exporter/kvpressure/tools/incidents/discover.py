"""Which engines a Prometheus knows of, how often each was scraped, and by which names it has their series."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.runtimes.registry import ASSUMED, TABLES, named
from kvpressure.runtimes.table import Table
from kvpressure.tools.incidents.answers import PrometheusError
from kvpressure.tools.incidents.client import Prometheus
from kvpressure.tools.incidents.names import Selection, Spelled, Target, all_names, one_of, spelled, target_of
from kvpressure.tools.incidents.paging import Span, ranged

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
