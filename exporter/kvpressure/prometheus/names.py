"""Which series of a Prometheus are an engine's: the names of each runtime, the engines there, and how often scraped.

Every label that is not the metric's own distinguishes targets, whatever its name; one that is the same everywhere
does no harm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.config.target import ALL_GPUS
from kvpressure.config.target import Target as PolledTarget
from kvpressure.model.environment import DeclaredLimit
from kvpressure.prometheus.answers import PrometheusError
from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.paging import Span, ranged
from kvpressure.runtimes.registry import TABLES, named
from kvpressure.runtimes.table import Table

REPLICA_LABELS: Final = ("prometheus_replica", "__replica__", "receive_replica")
"""Labels of several Prometheus servers that scrape the same: their series are of one target."""

_OWN_LABELS: Final = frozenset(
    {"__name__", "le", "quantile", "pid", "reason", "finished_reason", "source", "stage", "sleep_state", "position"}
)
_OF_RAY: Final = frozenset(
    {"WorkerId", "ReplicaId", "SessionName", "Version", "Component", "NodeAddress", "application", "deployment"}
)
"""Ray's labels differ between the processes of one engine, whose values are added up."""

FIRST_RANK: Final = "0"
_PLAIN: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

Labels = tuple[tuple[str, str], ...]
Json = dict[str, Any]


def quoted(text: str) -> str:
    r"""Return a string of PromQL.

    >>> print(quoted('a"b'))
    "a\"b"
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def one_of(names: Iterable[str]) -> str:
    """Return a matcher for metrics of these names.

    >>> one_of(["engine:b", "engine:a"])
    '__name__=~"engine:a|engine:b"'
    """
    return f"__name__=~{quoted('|'.join(re.escape(name) for name in sorted(names)))}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Label matchers of a user, without braces; "" for all. They may name no metric."""

    matchers: str = ""

    @classmethod
    def of(cls, text: str) -> Selection:
        """Return the selection for matchers with or without braces. Raises ValueError for anything else."""
        plain = text.strip()
        plain = plain[1:-1].strip() if plain.startswith("{") and plain.endswith("}") else plain
        if "__name__" in plain or (plain and not re.match(r"[a-zA-Z_]\w*\s*(=|!)", plain)):
            raise ValueError('must be label matchers such as namespace="prod",pod=~"llm-.*", and name no metric')
        return cls(plain.rstrip(", "))

    def names(self, *labels: str) -> bool:
        """Whether the selection uses any of these labels."""
        return any(re.search(rf"(?<!\w){re.escape(label)}\s*(=|!)", self.matchers) for label in labels if label)

    def within(self, clusters: Sequence[str]) -> Selection:
        """Return the same in any of these clusters, as the label `cluster` names them; in all without one."""
        if not clusters:
            return self
        names = "|".join(re.escape(name) for name in clusters)
        which = f"cluster=~{quoted(names)}" if clusters[1:] else f"cluster={quoted(clusters[0])}"
        return Selection(", ".join(filter(None, [which, self.matchers])))

    def and_also(self, *matchers: str) -> str:
        """Return a selector with more matchers."""
        return "{" + ", ".join((*matchers, *([self.matchers] if self.matchers else []))) + "}"


@dataclass(frozen=True, slots=True)
class Spelled:
    """A runtime's names in one spelling, as far as a Prometheus has them."""

    table: Table
    spelling: str
    present: frozenset[str]

    def named(self, signal: str, *, suffix: str = "") -> str | None:
        """Return the first of a signal's metrics that is there; None without one.

        `suffix` is that of a histogram's part, for the signals that are histograms.
        """
        rows = self.table.histograms if suffix else (*self.table.gauges, *self.table.counters)
        names = (name + suffix for row in rows if row.signal == signal and not row.where for name in row.names)
        present = (self.spelling + name.removeprefix(self.table.prefix) for name in names)
        return next((name for name in present if name in self.present), None)


def all_names(tables: Iterable[Table]) -> frozenset[str]:
    """Return every name that the tables read, in every spelling."""
    names = (name.decode() for table in tables for name in table.wanted())
    return frozenset((*names, *(name for table in tables for name in label_names(table))))


def label_names(table: Table) -> set[str]:
    """Return the names of those series whose labels carry a value, in every spelling."""
    names = (row.name.removeprefix(table.prefix) for row in table.label_signals)
    return {spelling + name for name in names for spelling in table.spellings}


def spelled(tables: Iterable[Table], present: Collection[str]) -> list[Spelled]:
    """Return the runtimes and spellings of which a Prometheus has the number of running requests."""
    every = (
        Spelled(table, spelling, frozenset(name for name in present if name.startswith(spelling)))
        for table in tables
        for spelling in table.spellings
    )
    return [table_spelling for table_spelling in every if table_spelling.named("running") is not None]


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One thing that was scraped: the labels that identify it, sorted. Several engines may be on its page."""

    labels: Labels

    def get(self, *names: str) -> str:
        """Return the first of these labels that it has, "" without any."""
        known = dict(self.labels)
        return next((known[name] for name in names if known.get(name)), "")

    @property
    def namespace(self) -> str:
        """Kubernetes namespace, "" without one."""
        return self.get("namespace", "kubernetes_namespace", "exported_namespace")

    @property
    def pod(self) -> str:
        """Pod, "" without one."""
        return self.get("pod", "pod_name", "kubernetes_pod_name", "exported_pod")

    @property
    def name(self) -> str:
        """The name in reports."""
        cluster = self.get("cluster")
        where = self.get("instance") or ",".join(f"{name}={value}" for name, value in self.labels)
        plain = "/".join(part for part in (self.namespace, self.pod) if part) if self.pod else where
        return f"{cluster}/{plain}" if cluster else plain


def labelled_engine(labels: Mapping[str, str], table: Table) -> tuple[str, str]:
    """Return the model and the rank of a series of an engine."""
    model = labels.get(table.model_label) or labels.get(table.other_model_label, "")
    return model, labels.get(table.engine_label, FIRST_RANK)


def rank_of(engine: str) -> str:
    """Return the rank of an engine, whose name also has its server's where a page is of several."""
    return engine.partition("@")[0]


def target_of(labels: Mapping[str, str], table: Table) -> Target:
    """Return the target of a series of an engine."""
    own = _OWN_LABELS | {table.engine_label, table.model_label, table.other_model_label, *REPLICA_LABELS}
    ray = _OF_RAY if labels.keys() & {"WorkerId", "SessionName"} else frozenset()
    kept = (pair for pair in labels.items() if pair[0] not in own | ray and _PLAIN.fullmatch(pair[0]))
    return Target(tuple(sorted(kept)))


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
