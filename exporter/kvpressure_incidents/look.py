"""A look back as a whole: which engines there were, where an incident may be, and the incidents found there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from kvpressure import __version__
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.schemas.incidents import VERSION
from kvpressure.prometheus.answers import PrometheusError
from kvpressure.prometheus.client import Prometheus, Server
from kvpressure.prometheus.declared import Declared, declared_there, gpus_there, pod_of, roles_there
from kvpressure.prometheus.gateways import Pool, behind, pools_there
from kvpressure.prometheus.names import Discovered, Json, Spelled, Target, names_there, slowest, targets_there
from kvpressure.prometheus.paging import DAY_SECONDS, Span, joined, pages
from kvpressure.runtimes.registry import ASSUMED
from kvpressure_incidents import alerts, reported
from kvpressure_incidents.follow import LONGEST_STEP_SECONDS, Task, follow, in_parallel
from kvpressure_incidents.question import Question
from kvpressure_incidents.reported import Rows
from kvpressure_incidents.screens import QUEUE_STEP, Screen, queued, screened, screens, stretches
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
        answers = look.follow(tasks, workers)
        look.warnings += client.warnings
    return look.document(tasks, answers)


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
        """Find the targets, what else is known of them, and the gateways before them."""
        selection = self.question.selection
        self.spelled = names_there(self.client, selection, self.question.span)
        if not self.spelled:
            chosen = f" with {selection.matchers}" if selection.matchers else ""
            raise PrometheusError(
                f"the Prometheus has no series of an engine ({ASSUMED.table.prefix}...){chosen} in that time; "
                "check --cluster, --selector, --since and --until, and that the engines are scraped",
            )
        for spelled in self.spelled:
            known = {(discovered.runtime, discovered.target) for _, discovered in self.targets}
            there = targets_there(self.client, spelled, selection, self.question.span)
            # A target that has series in several spellings is read in all of them at once.
            self.targets += [(spelled, each) for each in there if (each.runtime, each.target) not in known]
        self.declared = declared_there(self.client, self.question.span)
        self.roles = self._known("roles of engines", roles_there)
        self.gpus = self._known("GPUs", gpus_there)
        self.discover_gateways()

    def discover_gateways(self) -> None:
        """Find the gateways before the targets."""
        targets = [discovered.target for _, discovered in self.targets]
        try:
            pools = pools_there(self.client, self.question.span)
        except PrometheusError as error:
            self.warnings.append(f"queues of gateways were not read: {error.sentence}")
            return
        self.pools = behind(pools, targets)
        alone = {pool.title for pool in pools} - {pool.title for pool in self.pools.values()}
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
        parts = list(self._screens())
        by_labels = {discovered.target.labels: discovered.target for _, discovered in self.targets}
        for number, (spelled, screen, page) in enumerate(parts):
            self.progress("screening", number, len(parts))
            for labels, spans in screened(self.client, screen, spelled, page):
                if (target := by_labels.get(tuple(labels))) is not None:
                    self.suspects.setdefault(target, []).extend(Span(*span) for span in spans)
        self.progress("screening", len(parts), len(parts))
        self.screen_gateways()

    def _screens(self) -> Iterator[tuple[Spelled, Screen, Span]]:
        """Yield the queries of the screens, page by page."""
        question = self.question
        for spelled in self.spelled:
            targets = [discovered for own, discovered in self.targets if own is spelled]
            interval = slowest(targets, LONGEST_STEP_SECONDS)
            # Two settings mostly have the same screens: each is queried once.
            every = (screens(spelled, question.selection, interval, limits) for limits in question.settings)
            for screen in dict.fromkeys(itertools.chain.from_iterable(every)):
                for page in pages(question.span, screen.step, screen.page_seconds):
                    yield spelled, screen, page

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
        answers, whole = self._by_day("alerts", "alerts of kvpressure were not read", alerts.read_page)
        self.alerts = alerts.recorded(answers) if whole else None

    def query_exporter(self) -> None:
        """Query an exporter's verdicts, where there was one; the engines' own series are enough without."""
        read = partial(
            reported.read_page, known=reported.known_names(discovered.target for _, discovered in self.targets)
        )
        unread = "not all of an exporter's verdicts were read"
        answers, _ = self._by_day("the exporter's verdicts", unread, read)
        self.reported = reported.troubles(answers, self.question.thresholds.verdict.incident_gap_seconds)

    def _by_day(self, what: str, unread: str, read: Callable[[Prometheus, Span], Rows]) -> tuple[list[Rows], bool]:
        """Return what was read day by day, and whether all was; a warning where not."""
        days, answers = list(pages(self.question.span, reported.EVERY_SECONDS, DAY_SECONDS)), list[Rows]()
        for number, day in enumerate(days):
            self.progress(what, number, len(days))
            try:
                answers.append(read(self.client, day))
            except PrometheusError as error:
                self.warnings.append(f"{unread}: {error.sentence}")
                return answers, False
        return answers, True

    def tasks(self) -> Iterator[Task]:
        """Yield the targets to read sample by sample, with their stretches."""
        question = self.question
        for _, discovered in self.targets:
            target = discovered.target
            if suspects := joined(self.suspects.get(target, []), 0.0):
                spans = stretches(suspects, question.span, LEAD_SECONDS, TAIL_SECONDS)
                yield Task(
                    self.server,
                    discovered,
                    tuple((span, span.end >= question.span.end) for span in spans),
                    question.step,
                    question.settings,
                    question.shortest_seconds,
                    declared=self.declared.get(pod_of(target)),
                    pool=self.pools.get(target),
                    role=self.roles.get(target, ""),
                    gpus=self.gpus.get(target, ""),
                )

    def follow(self, tasks: Sequence[Task], workers: int) -> list[Json]:
        """Return the incidents of each target."""
        answers: dict[tuple[str, Target], Json] = {}
        self.progress("reading", 0, len(tasks))

        def finished(task: Task, answer: Json) -> None:
            answers[task.discovered.runtime, task.discovered.target] = answer
            self.progress("reading", len(answers), len(tasks))

        if workers <= 1 or len(tasks) <= 1:
            for task in tasks:
                finished(task, follow(self.client, task))
        else:
            in_parallel(tasks, workers, finished)
        return [answers[task.discovered.runtime, task.discovered.target] for task in tasks]

    def document(self, tasks: Sequence[Task], answers: Sequence[Json]) -> Json:
        """Return everything as one document; the answers are those of the tasks, in their order."""
        answers = [task.discovered.selected(answer) for task, answer in zip(tasks, answers, strict=True)]
        warnings = itertools.chain(self.warnings, *(answer["warnings"] for answer in answers))
        return {
            "schema_version": VERSION,
            "kind": "incidents",
            "kvpressure": __version__,
            **self._asked(),
            "targets": len(self.targets),
            "targets_read": len(tasks),
            "seconds_read": round(sum(span.seconds for task in tasks for span, _ in task.stretches), 3),
            "samples_read": sum(answer["samples"] for answer in answers),
            **self._judged(answers),
            "unjudged": [row for answer in answers for row in answer["unjudged"]],
            "unread": [
                {"target": task.discovered.target.name, "why": answer["unread"]}
                for task, answer in zip(tasks, answers, strict=True)
                if answer["unread"]
            ],
            "warnings": list(dict.fromkeys(warnings)),
        }

    def _asked(self) -> Json:
        return {
            "prometheus": self.server.url,
            "selector": self.question.selection.matchers,
            "since": self.question.span.start,
            "until": self.question.span.end,
            "thresholds": self.question.thresholds.hash,
            "shortest_seconds": self.question.shortest_seconds,
        }

    def _judged(self, answers: Sequence[Json]) -> Json:
        """Return the incidents, with what alerts and an exporter said of them, and what else an exporter said."""
        question = self.question
        incidents = [incident for answer in answers for incident in answer["incidents"]]
        others = [incident for answer in answers for listed in answer["others"] for incident in listed]
        targets = [discovered.target for _, discovered in self.targets]
        if self.alerts is not None and self.alerts.any:
            alerts.attach(incidents, self.alerts, targets, question.span.end)
        alone = reported.attach(incidents, self.reported, targets, question.shortest_seconds)
        reported.attach(others, self.reported, targets, question.shortest_seconds)
        chosen = frozenset[tuple[str, str]]().union(*(discovered.engines or () for _, discovered in self.targets))
        incidents.sort(key=_by_time)
        return {
            "incidents": incidents,
            "exporter_alone": [row for row in alone if not chosen or (row["model_name"], row["engine"]) in chosen],
            "backtest": question.other and compared(question.thresholds, incidents, question.other, others),
            "has_rules": None if self.alerts is None else self.alerts.any,
        }


def _by_time(incident: Json) -> tuple[float, EngineName]:
    return incident["began"], engine_of(incident)


def compared(before: Thresholds, incidents: Sequence[Json], after: Thresholds, others: Sequence[Json]) -> Json:
    """Return the incidents of the other setting, and how they differ from those of the first.

    Two incidents are the same where they overlap on one engine, even where one setting splits it in two.
    """
    by_engine: dict[EngineName, list[Json]] = {}
    for incident in others:
        by_engine.setdefault(engine_of(incident), []).append(incident)
    met: set[int] = set()
    same = 0
    lost, changed = list[Json](), list[Json]()
    for incident in incidents:
        matches = [other for other in by_engine.get(engine_of(incident), ()) if _shared(incident, other) >= 0]
        met.update(map(id, matches))
        if not matches:
            lost.append(_brief(incident))
            continue
        best = max(matches, key=partial(_shared, incident))
        if _cause(incident) == _cause(best):
            same += 1
        else:
            changed.append({**_brief(incident), "before": _cause(incident), "after": _cause(best)})
    values = {name: (value, after.values[name]) for name, value in before.values.items()}
    return {
        "thresholds": after.hash,
        "changed_thresholds": {
            name: {"before": first, "after": second} for name, (first, second) in values.items() if first != second
        },
        "incidents": sorted(others, key=_by_time),
        "same": same,
        "only_before": lost,
        "only_after": [_brief(incident) for incident in others if id(incident) not in met],
        "changed_cause": changed,
    }


def _brief(incident: Json) -> Json:
    names = ("target", "model_name", "engine", "cause", "detail", "began", "ended", "seconds", "lost_tokens")
    return {name: incident[name] for name in names}


def _cause(incident: Json) -> Json:
    return {"cause": incident["cause"], "detail": incident["detail"]}


def _shared(first: Json, second: Json) -> float:
    """Return the seconds that two incidents share, below 0 where they do not overlap."""
    ends = (incident["began"] + incident["seconds"] for incident in (first, second))
    return float(min(ends) - max(first["began"], second["began"]))
