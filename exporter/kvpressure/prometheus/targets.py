"""The engines that a Prometheus has series of, and their scrape intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.config.target import ALL_GPUS
from kvpressure.config.target import Target as PolledTarget
from kvpressure.model.environment import DeclaredLimit
from kvpressure.prometheus.answers import PrometheusError
from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.names import (
    Json,
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
from kvpressure.prometheus.paging import Span, ranged
from kvpressure.runtimes.registry import TABLES, named
from kvpressure.runtimes.table import Table

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

    def polled(self, declared: tuple[DeclaredLimit, ...] | None, role: str, *, gpus: bool = False) -> PolledTarget:
        """Return the target as the pipeline takes it, with what else the Prometheus has of it."""
        target = self.target
        return PolledTarget(
            target.name,
            namespace=target.namespace,
            pod=target.pod,
            container=target.get("container"),
            limits=declared,
            role=role,
            gpus=(ALL_GPUS,) if gpus else (),
        )

    def selected(self, found: Json) -> Json:
        """Return the outcome without the engines of a page that the selector does not match: pages are read whole."""
        if (engines := self.engines) is None:
            return found

        def kept(rows: Sequence[Json]) -> list[Json]:
            return [row for row in rows if (row["model_name"], rank_of(row["engine"])) in engines]

        others = [kept(listed) for listed in found["others"]]
        return {**found, "incidents": kept(found["incidents"]), "unjudged": kept(found["unjudged"]), "others": others}


def names_there(server: Prometheus, selection: Selection, span: Span) -> list[Spelled]:
    """Return the runtimes' series names that the Prometheus has. Raises PrometheusError."""
    known = all_names(TABLES)
    present = server.label_values("__name__", [selection.and_also(one_of(known))], span.start, span.end)
    return spelled(TABLES, known.intersection(present))


def targets_there(server: Prometheus, names: Spelled, selection: Selection, span: Span) -> list[Discovered]:
    """Return the targets of one spelling, by name. Raises PrometheusError."""
    running = names.named("running")
    expr = f"count_over_time({running}{selection.and_also()}[{PROBE_SECONDS:.0f}s])"
    step = max(PROBE_SECONDS, span.seconds / MAX_PROBES // 60 * 60)
    most: dict[Target, float] = {}
    engines: dict[Target, set[tuple[str, str]]] = {}

    def target_of_labels(labels: Mapping[str, str]) -> Target:
        target = target_of(labels, names.table)
        engines.setdefault(target, set()).add(labelled_engine(labels, names.table))
        return target

    # Both ends and every step between: an engine that lived for less than a step is missed, so steps are short.
    for row in ranged(server, expr, span, step, step):
        target = target_of_labels(row["metric"])
        count = max((value for _, value in row.get("values", ()) if 0 < value < math.inf), default=0.0)
        most[target] = max(most.get(target, 0.0), count)
    for labels in server.series([f"{running}{selection.and_also()}"], span.start, span.end):
        most.setdefault(target_of_labels(labels), 0.0)
    if len(most) > MAX_TARGETS:
        text = f"the Prometheus knows of {len(most):,} engines' pages in that time, more than the {MAX_TARGETS:,} that"
        raise PrometheusError(f"{text} are read at once; narrow --selector, --cluster or --since")
    usual = sorted(PROBE_SECONDS / count for count in most.values() if count) or [PROBE_SECONDS]
    middle = usual[len(usual) // 2]
    without = lacking(most)
    chooses = selection.names(names.table.engine_label, names.table.model_label)
    return [
        Discovered(
            target,
            names.table.runtime,
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
    missing: dict[Target, tuple[str, ...]] = {}
    if len(by_names) > MAX_LABELLINGS:
        return missing
    for fewer, own in by_names.items():
        for more, others in by_names.items():
            if set(fewer) < set(more):
                same = {tuple(pair for pair in other.labels if pair[0] in fewer) for other in others}
                extra = set(more) - set(fewer)
                for target in own:
                    if target.labels in same:
                        missing[target] = tuple(sorted({*missing.get(target, ()), *extra}))
    return missing


def slowest(targets: Sequence[Discovered], longest: float) -> float:
    """Return the longest scrape interval of the targets, of those that are short enough to judge."""
    return max((discovered.interval for discovered in targets if discovered.interval <= longest), default=longest)
