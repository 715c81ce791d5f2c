"""A look back as a whole: which engines there were, where an incident may be, and the incidents found there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from kvpressure import __version__
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.schemas.incidents import VERSION
from kvpressure.prometheus.answers import PrometheusError
from kvpressure.prometheus.client import Prometheus, Server
from kvpressure.prometheus.declared import Declared, declared_there, pod_of, roles_there
from kvpressure.prometheus.gateways import Pool, behind, pools_there
from kvpressure.prometheus.gpus import gpus_there
from kvpressure.prometheus.names import Json, Spelled, Target
from kvpressure.prometheus.paging import DAY_SECONDS, Span, joined, pages
from kvpressure.prometheus.targets import Discovered, names_there, slowest, targets_there
from kvpressure_incidents import alerts, reported
from kvpressure_incidents.follow import LONGEST_STEP_SECONDS, Task, follow, in_parallel
from kvpressure_incidents.question import Question
from kvpressure_incidents.screens import QUEUE_STEP, queued, screened, screens, stretches
from kvpressure_incidents.words import EngineName, engine_of

LEAD_SECONDS: Final = 1200.0
TAIL_SECONDS: Final = 600.0
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many pieces of it are done, and of how many."""
T = TypeVar("T")


def look_back(server: Server, question: Question, progress: Progress, *, workers: int = 1) -> Json:
    """Return everything as one document. Raises PrometheusError where the Prometheus cannot be queried."""
    with Prometheus(server) as client:
        look = _Look(server, question, progress, client)
        look.discover()
        look.screen()
        look.query_alerts()
        look.query_exporter()
        tasks = list(look.tasks())
        found = look.follow(tasks, workers)
        look.warnings += client.warnings
    return look.document(tasks, found)


@dataclass(slots=True)
class _Look:
    """The question, and what is known so far."""

    server: Server
    question: Question
    progress: Progress
    client: Prometheus
    spelled: list[Spelled] = field(default_factory=list)
    targets: list[tuple[Spelled, Discovered]] = field(default_factory=list)
    suspects: dict[Target, list[Span]] = field(default_factory=dict)
    pools: dict[Target, Pool] = field(default_factory=dict)
    """The pools of the targets behind a gateway."""
    alerts: alerts.Recorded | None = None
    """None where they could not be read."""
    roles: dict[Target, str] = field(default_factory=dict)
    gpus: dict[Target, str] = field(default_factory=dict)
    declared: Declared = field(default_factory=dict)
    reported: dict[reported.Key, list[reported.Reported]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def discover(self) -> None:
        """Find the targets, and the gateways before them."""
        self.spelled = names_there(self.client, self.question.selection, self.question.span)
        for spelled in self.spelled:
            known = {(discovered.runtime, discovered.target) for _, discovered in self.targets}
            found = targets_there(self.client, spelled, self.question.selection, self.question.span)
            # A target that has series in several spellings is read in all of them at once.
            self.targets += [(spelled, one) for one in found if (one.runtime, one.target) not in known]
        self.declared = declared_there(self.client, self.question.span)
        every = [discovered.target for _, discovered in self.targets]
        self.roles, self.gpus = self._known("roles of engines", roles_there), self._known("GPUs", gpus_there)
        try:
            there = pools_there(self.client, self.question.span)
        except PrometheusError as error:
            self.warnings.append(f"queues of gateways were not read: {error.sentence}")
            return
        self.pools = behind(there, every)
        alone = {pool.title for pool in there} - {pool.title for pool in self.pools.values()}
        self.warnings += [f"gateway of {title}: no engine is known to be behind it" for title in sorted(alone)]

    def _known(
        self, what: str, query: Callable[[Prometheus, list[Target], Span], dict[Target, str]]
    ) -> dict[Target, str]:
        """Return what the Prometheus has besides of each target; a warning where it cannot be read."""
        try:
            return query(self.client, [discovered.target for _, discovered in self.targets], self.question.span)
        except PrometheusError as error:
            self.warnings.append(f"{what} were not read: {error.sentence}")
            return {}

    def screen(self) -> None:
        """Find the suspects: the stretches in which an incident may be."""
        parts = []
        for spelled in self.spelled:
            interval = slowest([one for own, one in self.targets if own is spelled], LONGEST_STEP_SECONDS)
            # Two settings mostly have the same screens: each is queried once.
            every = (screens(spelled, self.question.selection, interval, limits) for limits in self.question.settings)
            parts += [
                (spelled, screen, page)
                for screen in dict.fromkeys(itertools.chain.from_iterable(every))
                for page in pages(self.question.span, screen.step, screen.page_seconds)
            ]
        by_labels = {discovered.target.labels: discovered.target for _, discovered in self.targets}
        for number, (spelled, screen, page) in enumerate(parts):
            self.progress("screening", number, len(parts))
            for labels, spans in screened(self.client, screen, spelled, page):
                if (target := by_labels.get(tuple(labels))) is not None:
                    self.suspects.setdefault(target, []).extend(Span(*span) for span in spans)
        self.progress("screening", len(parts), len(parts))
        self.screen_gateways()

    def screen_gateways(self) -> None:
        """Add the stretches in which requests waited at a gateway to the suspects."""
        for pool in dict.fromkeys(self.pools.values()):
            targets = [target for target, own in self.pools.items() if own == pool]
            for page in pages(self.question.span, QUEUE_STEP, 7 * DAY_SECONDS):
                for limits in self.question.settings:
                    waited = list(queued(self.client, pool, limits, page))
                    for target in targets:
                        self.suspects.setdefault(target, []).extend(waited)

    def query_alerts(self) -> None:
        """Query which alerts of kvpressure fired, where the Prometheus evaluates its rules."""
        days, answers = list(pages(self.question.span, reported.EVERY_SECONDS, DAY_SECONDS)), []
        for number, page in enumerate(days):
            self.progress("alerts", number, len(days))
            try:
                answers.append(alerts.read_page(self.client, page))
            except PrometheusError as error:
                self.warnings.append(f"alerts of kvpressure were not read: {error.sentence}")
                return
        self.alerts = alerts.recorded(answers)

    def query_exporter(self) -> None:
        """Query an exporter's verdicts, where there was one; the engines' own series are enough without."""
        days, answers = list(pages(self.question.span, reported.EVERY_SECONDS, DAY_SECONDS)), []
        known = reported.known_names(discovered.target for _, discovered in self.targets)
        for number, page in enumerate(days):
            self.progress("the exporter's verdicts", number, len(days))
            try:
                answers.append(reported.read_page(self.client, page, known))
            except PrometheusError as error:
                self.warnings.append(f"not all of an exporter's verdicts were read: {error.sentence}")
                break
        self.reported = reported.troubles(answers, self.question.thresholds.verdict.incident_gap_seconds)

    def tasks(self) -> Iterator[Task]:
        """Yield the targets to read sample by sample, with their stretches."""
        question = self.question
        how = question.step, question.settings, question.shortest_seconds
        for _, discovered in self.targets:
            target = discovered.target
            if suspects := joined(self.suspects.get(target, []), 0.0):
                spans = stretches(suspects, question.span, LEAD_SECONDS, TAIL_SECONDS)
                read = tuple((span, span.end >= question.span.end) for span in spans)
                known = self.declared.get(pod_of(target)), self.pools.get(target), self.roles.get(target, "")
                yield Task(self.server, discovered, read, *how, *known, self.gpus.get(target, ""))

    def follow(self, tasks: Sequence[Task], workers: int) -> list[Json]:
        """Return the incidents of each target."""
        found: dict[tuple[str, Target], Json] = {}
        self.progress("reading", 0, len(tasks))

        def finished(task: Task, value: Json) -> None:
            found[task.discovered.runtime, task.discovered.target] = value
            self.progress("reading", len(found), len(tasks))

        if workers <= 1 or len(tasks) <= 1:
            for task in tasks:
                finished(task, follow(self.client, task))
        else:
            in_parallel(tasks, workers, finished)
        return [found[task.discovered.runtime, task.discovered.target] for task in tasks]

    def document(self, tasks: Sequence[Task], found: Sequence[Json]) -> Json:
        """Return everything as one document."""
        question = self.question
        found = [task.discovered.selected(one) for task, one in zip(tasks, found, strict=True)]
        incidents = [incident for one in found for incident in one["incidents"]]
        others = [incident for one in found for listed in one["others"] for incident in listed]
        targets = [discovered.target for _, discovered in self.targets]
        if self.alerts is not None and self.alerts.any:
            alerts.attach(incidents, self.alerts, targets, question.span.end)
        alone, _ = (
            reported.attach(listed, self.reported, targets, question.shortest_seconds) for listed in (incidents, others)
        )
        chosen = frozenset[tuple[str, str]]().union(*(discovered.engines or () for _, discovered in self.targets))
        warnings = dict.fromkeys((*self.warnings, *(warning for one in found for warning in one["warnings"])))
        incidents.sort(key=lambda one: (one["began"], engine_of(one)))
        return {
            "schema_version": VERSION,
            "kind": "incidents",
            "kvpressure": __version__,
            "prometheus": self.server.url,
            "selector": question.selection.matchers,
            "since": question.span.start,
            "until": question.span.end,
            "thresholds": question.thresholds.hash,
            "shortest_seconds": question.shortest_seconds,
            "targets": len(self.targets),
            "targets_read": len(tasks),
            "seconds_read": round(sum(span.seconds for task in tasks for span, _ in task.stretches), 3),
            "samples_read": sum(one["samples"] for one in found),
            "incidents": incidents,
            "exporter_alone": [one for one in alone if not chosen or (one["model_name"], one["engine"]) in chosen],
            "backtest": question.other and compared(question.thresholds, incidents, question.other, others),
            "has_rules": None if self.alerts is None else self.alerts.any,
            "unjudged": [row for one in found for row in one["unjudged"]],
            "unread": [
                {"target": task.discovered.target.name, "why": one["unread"]}
                for task, one in zip(tasks, found, strict=True)
                if one["unread"]
            ],
            "warnings": list(warnings),
        }


def compared(before: Thresholds, incidents: Sequence[Json], after: Thresholds, others: Sequence[Json]) -> Json:
    """Return the incidents of the other setting, and how they differ from those of the first.

    Two incidents are the same where they overlap on one engine, even where one setting splits it in two.
    """
    by_engine: dict[EngineName, list[Json]] = {}
    for one in others:
        by_engine.setdefault(engine_of(one), []).append(one)
    met: set[int] = set()
    same, lost, changed = 0, [], []
    for one in incidents:
        matches = [other for other in by_engine.get(engine_of(one), ()) if _shared(one, other) >= 0]
        met.update(map(id, matches))
        if not matches:
            lost.append(_brief(one))
            continue
        best = max(matches, key=lambda other: _shared(one, other))
        if (one["cause"], one["detail"]) == (best["cause"], best["detail"]):
            same += 1
        else:
            changed.append({**_brief(one), "before": _cause(one), "after": _cause(best)})
    values = {name: (value, after.values[name]) for name, value in before.values.items()}
    return {
        "thresholds": after.hash,
        "changed_thresholds": {
            name: {"before": first, "after": second} for name, (first, second) in values.items() if first != second
        },
        "incidents": sorted(others, key=lambda one: (one["began"], engine_of(one))),
        "same": same,
        "only_before": lost,
        "only_after": [_brief(one) for one in others if id(one) not in met],
        "changed_cause": changed,
    }


def _brief(one: Json) -> Json:
    names = ("target", "model_name", "engine", "cause", "detail", "began", "ended", "seconds", "lost_tokens")
    return {name: one[name] for name in names}


def _cause(one: Json) -> Json:
    return {"cause": one["cause"], "detail": one["detail"]}


def _shared(one: Json, other: Json) -> float:
    """Return the seconds that two incidents share, below 0 where they do not overlap."""
    ends = (each["began"] + each["seconds"] for each in (one, other))
    return float(min(ends) - max(one["began"], other["began"]))
