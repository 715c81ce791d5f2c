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
        alerts_read, whole = look.by_day("alerts", "alerts of kvpressure were not read", alerts.read_page)
        fired = alerts.recorded(alerts_read) if whole else None
        # An exporter's verdicts, where there was one; the engines' own series are enough without.
        read = partial(reported.read_page, known=reported.known_names(discovered.target for discovered in look.found))
        unread = "not all of an exporter's verdicts were read"
        verdicts, _ = look.by_day("the exporter's verdicts", unread, read)
        tasks = list(look.tasks())
        answers = look.follow(tasks, workers)
        look.warnings += client.warnings
    return look.document(tasks, answers, fired, verdicts)


@dataclass(slots=True)
class _Look:
    """The question, and what is known so far."""

    server: Server
    question: Question
    progress: Progress
    client: Prometheus
    targets: dict[Spelled, list[Discovered]] = field(default_factory=dict)
    suspects: dict[Target, list[Span]] = field(default_factory=dict)
    pools: dict[Target, Pool] = field(default_factory=dict)
    """The pools of the targets behind a gateway."""
    roles: dict[Target, str] = field(default_factory=dict)
    gpus: dict[Target, str] = field(default_factory=dict)
    declared: Declared = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def found(self) -> list[Discovered]:
        """The targets in every spelling."""
        return list(itertools.chain(*self.targets.values()))

    def discover(self) -> None:
        """Find the targets, what else is known of them, and the gateways before them."""
        client, selection, span = self.client, self.question.selection, self.question.span
        spelled = names_there(client, selection, span)
        if not spelled:
            chosen = f" with {selection.matchers}" if selection.matchers else ""
            raise PrometheusError(
                f"the Prometheus has no series of an engine ({ASSUMED.table.prefix}...){chosen} in that time; "
                "check --cluster, --selector, --since and --until, and that the engines are scraped",
            )
        for names in spelled:
            known = {(discovered.runtime, discovered.target) for discovered in self.found}
            there = targets_there(client, names, selection, span)
            # A target that has series in several spellings is read in all of them at once.
            self.targets[names] = [each for each in there if (each.runtime, each.target) not in known]
        targets = [discovered.target for discovered in self.found]
        self.declared = declared_there(client, span)
        self.roles = self._read("roles of engines", lambda: roles_there(client, targets, span), {})
        self.gpus = self._read("GPUs", lambda: gpus_there(client, targets, span), {})
        pools = self._read("queues of gateways", lambda: pools_there(client, span), list[Pool]())
        self.pools = behind(pools, targets)
        alone = {pool.title for pool in pools} - {pool.title for pool in self.pools.values()}
        self.warnings += [f"gateway of {title}: no engine is known to be behind it" for title in sorted(alone)]

    def _read(self, what: str, query: Callable[[], T], otherwise: T) -> T:
        """Return what the Prometheus has besides of the targets; a warning where it cannot be read."""
        try:
            return query()
        except PrometheusError as error:
            self.warnings.append(f"{what} were not read: {error.sentence}")
            return otherwise

    def screen(self) -> None:
        """Find the suspects: the stretches in which an incident may be."""
        parts = list(self._screens())
        by_labels = {discovered.target.labels: discovered.target for discovered in self.found}
        for number, (spelled, screen, page) in enumerate(parts):
            self.progress("screening", number, len(parts))
            for labels, spans in screened(self.client, screen, spelled, page):
                if (target := by_labels.get(tuple(labels))) is not None:
                    self.suspects.setdefault(target, []).extend(Span(*span) for span in spans)
        self.progress("screening", len(parts), len(parts))
        # Those in which requests waited at a gateway.
        for pool in dict.fromkeys(self.pools.values()):
            targets = [target for target, own in self.pools.items() if own == pool]
            for page in pages(self.question.span, QUEUE_STEP, 7 * DAY_SECONDS):
                for limits in self.question.settings:
                    waited = list(queued(self.client, pool, limits, page))
                    for target in targets:
                        self.suspects.setdefault(target, []).extend(waited)

    def _screens(self) -> Iterator[tuple[Spelled, Screen, Span]]:
        """Yield the queries of the screens, page by page."""
        question = self.question
        for spelled, targets in self.targets.items():
            interval = slowest(targets, LONGEST_STEP_SECONDS)
            # Two settings mostly have the same screens: each is queried once.
            every = (screens(spelled, question.selection, interval, limits) for limits in question.settings)
            for screen in dict.fromkeys(itertools.chain.from_iterable(every)):
                for page in pages(question.span, screen.step, screen.page_seconds):
                    yield spelled, screen, page

    def by_day(self, what: str, unread: str, read: Callable[[Prometheus, Span], Rows]) -> tuple[list[Rows], bool]:
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
        for discovered in self.found:
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

    def document(
        self,
        tasks: Sequence[Task],
        answers: Sequence[Json],
        fired: alerts.Recorded | None,
        verdicts: Sequence[Rows],
    ) -> Json:
        """Return everything as one document; the answers are those of the tasks, in their order.

        `fired` is None where alerts could not be read, `verdicts` are an exporter's.
        """
        question = self.question
        answers = [task.discovered.selected(answer) for task, answer in zip(tasks, answers, strict=True)]
        warnings = itertools.chain(self.warnings, *(answer["warnings"] for answer in answers))
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
            "targets": len(self.found),
            "targets_read": len(tasks),
            "seconds_read": round(sum(span.seconds for task in tasks for span, _ in task.stretches), 3),
            "samples_read": sum(answer["samples"] for answer in answers),
            **self._judged(answers, fired, verdicts),
            "has_rules": None if fired is None else fired.any,
            "unjudged": [row for answer in answers for row in answer["unjudged"]],
            "unread": [
                {"target": task.discovered.target.name, "why": answer["unread"]}
                for task, answer in zip(tasks, answers, strict=True)
                if answer["unread"]
            ],
            "warnings": list(dict.fromkeys(warnings)),
        }

    def _judged(self, answers: Sequence[Json], fired: alerts.Recorded | None, verdicts: Sequence[Rows]) -> Json:
        """Return the incidents, with what alerts and an exporter said of them, and what else an exporter said."""
        question, targets = self.question, [discovered.target for discovered in self.found]
        incidents = [incident for answer in answers for incident in answer["incidents"]]
        others = [incident for answer in answers for listed in answer["others"] for incident in listed]
        if fired is not None and fired.any:
            alerts.attach(incidents, fired, targets, question.span.end)
        said = reported.troubles(verdicts, question.thresholds.verdict.incident_gap_seconds)
        alone = reported.attach(incidents, said, targets, question.shortest_seconds)
        reported.attach(others, said, targets, question.shortest_seconds)
        chosen = frozenset[tuple[str, str]]().union(*(discovered.engines or () for discovered in self.found))
        incidents.sort(key=_by_time)
        return {
            "incidents": incidents,
            "exporter_alone": [row for row in alone if not chosen or (row["model_name"], row["engine"]) in chosen],
            "backtest": question.other and compared(question.thresholds, incidents, question.other, others),
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
