"""A look back as a whole: who is there, where it may have gone wrong, and what was wrong there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvpressure import __version__
from kvpressure.model.schemas.incidents import VERSION
from kvpressure.tools.incidents import copied, remembered, reported
from kvpressure.tools.incidents.backtest import compared
from kvpressure.tools.incidents.client import Prometheus, Server
from kvpressure.tools.incidents.declared import Declared, declared_there, pod_of
from kvpressure.tools.incidents.discover import Seen, names_there, slowest, targets_there
from kvpressure.tools.incidents.document import Json, engine_of, fired_json
from kvpressure.tools.incidents.errors import PrometheusError
from kvpressure.tools.incidents.follow import LATE_SECONDS
from kvpressure.tools.incidents.found import Fired
from kvpressure.tools.incidents.journal import LARGEST_BYTES, Journal, Key
from kvpressure.tools.incidents.names import EngineName, Spelled, Target
from kvpressure.tools.incidents.pace import LONGEST_STEP_SECONDS
from kvpressure.tools.incidents.paging import Span, joined
from kvpressure.tools.incidents.question import Question
from kvpressure.tools.incidents.screen import Screen, page_list, screened, screens, stretches
from kvpressure.tools.incidents.tasks import Task, followed, in_parallel

LEAD_SECONDS: Final = 1200.0
TAIL_SECONDS: Final = 600.0
WARNED: Final = ("warnings",)
Progress = Callable[[str, int, int], None]
"""What is being done, how many pieces of it are done, and of how many."""


@dataclass(slots=True)
class _State:
    """What is known so far."""

    spelled: list[Spelled] = field(default_factory=list)
    seen: list[tuple[Spelled, Seen]] = field(default_factory=list)
    suspects: dict[Target, list[Span]] = field(default_factory=dict)
    unread: list[Json] = field(default_factory=list)
    rules: list[Json] = field(default_factory=list)
    copied: dict[EngineName, list[Fired]] = field(default_factory=dict)
    declared: Declared = field(default_factory=dict)
    reported: dict[reported.Key, list[reported.Reported]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    warned: dict[str, None] = field(default_factory=dict)
    """What the server warned of, before this one broke off too."""


def look_back(server: Server, question: Question, journal: Journal, progress: Progress, *, workers: int = 1) -> Json:
    """Everything as one document. Raises PrometheusError where the Prometheus cannot be asked."""
    journal.begin(question.asked(server))
    state = _State(warned=dict.fromkeys(journal.done(WARNED, remembered.warnings) or ()))
    with Prometheus(server) as client:
        _discover(client, question, state)
        _screen(client, question, state, journal, progress)
        _ask_copied(client, question, state, journal, progress)
        _ask_exporter(client, question, state, journal, progress)
        tasks = list(_tasks(server, question, state))
        found = _follow(tasks, question, client, journal, progress, workers)
        warnings = [*state.warnings, *state.warned, *client.asked.warnings]
        if journal.full:
            text = f"not all fits into a --resume file, of {LARGEST_BYTES >> 20} MiB: the rest will be asked for again"
            warnings.append(text)
    return _document(server, question, state, tasks, found, warnings)


def _finish(client: Prometheus, state: _State, journal: Journal, key: Key, value: Any) -> None:
    """Keep first what was warned of: an answer that is not complete must not look so the next time."""
    if client.asked.warnings.keys() - state.warned.keys():
        state.warned.update(client.asked.warnings)
        journal.finish(WARNED, list(state.warned))
    journal.finish(key, value)


def _discover(client: Prometheus, question: Question, state: _State) -> None:
    state.spelled = names_there(client, question.selection, question.span)
    for one in state.spelled:
        known = {(seen.runtime, seen.target) for _, seen in state.seen}
        for seen in targets_there(client, one, question.selection, question.span):
            # One that was spelled anew is read in all spellings at once.
            if (seen.runtime, seen.target) not in known:
                state.seen.append((one, seen))
    state.declared = declared_there(client, question.span)


def _screen(client: Prometheus, question: Question, state: _State, journal: Journal, progress: Progress) -> None:
    pages: list[tuple[Spelled, Screen, Span]] = []
    for one in state.spelled:
        interval = slowest([seen for own, seen in state.seen if own is one], LONGEST_STEP_SECONDS)
        # Of two settings, what either may find; where both ask the same, once.
        asked = [
            screen for limits in question.settings for screen in screens(one, question.selection, interval, limits)
        ]
        pages += [(one, screen, page) for screen, page in page_list(list(dict.fromkeys(asked)), question.span)]
    by_labels = {seen.target.labels: seen.target for _, seen in state.seen}
    for number, (one, screen, page) in enumerate(pages):
        progress("screening", number, len(pages))
        key = ("screen", screen.expr, page.start)
        if (known := journal.done(key, remembered.screen_rows)) is None:
            spans = screened(client, screen, one, page)
            known = [(list(target.labels), [(s.start, s.end) for s in its]) for target, its in spans.items()]
            _finish(client, state, journal, key, known)
        for labels, its in known:
            target = by_labels.get(tuple(labels))
            if target is not None:
                state.suspects.setdefault(target, []).extend(Span(start, end) for start, end in its)
    progress("screening", len(pages), len(pages))


def _ask_copied(client: Prometheus, question: Question, state: _State, journal: Journal, progress: Progress) -> None:
    asked = [(one, rule, expr) for one in state.spelled for rule, expr in copied.askable(one, question.selection)]
    days = list(copied.page_list(question.span))
    for number, (one, rule, expr) in enumerate(asked):
        answers = []
        for place, page in enumerate(days):
            progress("copied rules", number * len(days) + place, len(asked) * len(days))
            key = ("rule", one.spelling, rule.name, page.start)
            if (known := journal.done(key, remembered.rule_rows)) is None:
                known = copied.ask(client, expr, one, page)
                _finish(client, state, journal, key, known)
            answers.append(known)
        found = copied.fired(rule, answers, question.span.end)
        for engine, its in found.items():
            state.copied.setdefault(engine, []).extend(its)
        state.rules.append(
            {
                "rule": rule.name,
                "expr": rule.expr,
                "for_seconds": rule.for_seconds,
                "fired": sum(len(its) for its in found.values()),
            }
        )
    progress("copied rules", len(asked) * len(days), len(asked) * len(days))


def _ask_exporter(client: Prometheus, question: Question, state: _State, journal: Journal, progress: Progress) -> None:
    """Return what an exporter told, where one was; the engines' own series do without it."""
    days, answers = list(reported.page_list(question.span)), []
    known_targets = reported.Known.of(seen.target for _, seen in state.seen)
    for number, page in enumerate(days):
        progress("the exporter's verdicts", number, len(days))
        key = ("exporter told", page.start)
        if (known := journal.done(key, remembered.told_rows)) is None:
            try:
                known = reported.ask(client, page, known_targets)
            except PrometheusError as error:
                state.warnings.append(f"not all of an exporter's verdicts were read: {error.sentence}")
                break
            _finish(client, state, journal, key, known)
        answers.append(known)
    state.reported = reported.troubles(answers, question.thresholds.incident_gap_seconds)


def _tasks(server: Server, question: Question, state: _State) -> Iterator[Task]:
    for _, seen in state.seen:
        suspects = joined(state.suspects.get(seen.target, []), 0.0)
        if not suspects:
            continue
        read = stretches(suspects, question.span, LEAD_SECONDS, TAIL_SECONDS)
        yield Task(
            server,
            seen,
            tuple((span, span.end >= question.span.end) for span in read),
            question.step,
            question.settings,
            question.shortest_seconds,
            state.declared.get(pod_of(seen.target)),
        )


def _follow(
    tasks: Sequence[Task],
    question: Question,
    client: Prometheus,
    journal: Journal,
    progress: Progress,
    workers: int,
) -> list[Json]:
    kind = remembered.target_found(len(question.settings))
    known = {task.key: value for task in tasks if (value := journal.done(task.key, kind)) is not None}
    left = [task for task in tasks if task.key not in known]
    done = len(known)
    progress("reading", done, len(tasks))

    def finished(task: Task, value: Json) -> None:
        nonlocal done
        journal.finish(task.key, value)
        known[task.key] = value
        done += 1
        progress("reading", done, len(tasks))

    if workers <= 1 or len(left) <= 1:
        for task in left:
            finished(task, followed(client, task))
    else:
        in_parallel(left, workers, finished)
    return [known[task.key] for task in tasks]


def _document(
    server: Server,
    question: Question,
    state: _State,
    tasks: Sequence[Task],
    found: Sequence[Json],
    warnings: Sequence[str],
) -> Json:
    found = [_selected(task.seen, one) for task, one in zip(tasks, found, strict=True)]
    incidents = [incident for one in found for incident in one["incidents"]]
    state.unread += [
        {"target": task.seen.target.name, "why": one["unread"]}
        for task, one in zip(tasks, found, strict=True)
        if one["unread"]
    ]
    elsewhere = _attach_copied(incidents, state.copied)
    others = [incident for one in found for its in one["others"] for incident in its]
    _attach_copied(others, state.copied)
    targets = [seen.target for _, seen in state.seen]
    chosen = frozenset[tuple[str, str]]().union(*(seen.engines or () for _, seen in state.seen))
    alone = [
        one
        for one in reported.attach(incidents, state.reported, targets, question.shortest_seconds)
        if not chosen or (one["model_name"], one["engine"]) in chosen
    ]
    reported.attach(others, state.reported, targets, question.shortest_seconds)
    said = dict.fromkeys((*warnings, *(warning for one in found for warning in one["warnings"])))
    for rule in state.rules:
        rule["in_incidents"] = sum(
            any(fired["rule"] == rule["rule"] and fired["by"] == "copied" for fired in incident["fired"])
            for incident in incidents
        )
        rule["elsewhere"] = sum(one["rule"] == rule["rule"] for one in elsewhere)
    incidents.sort(key=lambda one: (one["began"], engine_of(one)))
    return {
        "schema_version": VERSION,
        "kind": "incidents",
        "kvpressure": __version__,
        "prometheus": server.url,
        "selector": question.selection.matchers,
        "since": question.span.start,
        "until": question.span.end,
        "thresholds": question.thresholds.hash,
        "shortest_seconds": question.shortest_seconds,
        "targets": len(state.seen),
        "targets_read": len(tasks),
        "seconds_read": round(sum(span.seconds for task in tasks for span, _ in task.stretches), 3),
        "samples_read": sum(one["samples"] for one in found),
        "incidents": incidents,
        "exporter_alone": alone,
        "backtest": None
        if question.other is None
        else compared(question.thresholds, incidents, question.other, others),
        "copied_rules": state.rules,
        "fired_elsewhere": elsewhere,
        "unjudged": [row for one in found for row in one["unjudged"]],
        "unread": state.unread,
        "warnings": list(said),
    }


def _selected(seen: Seen, found: Json) -> Json:
    """Without the engines of a page that the selector leaves out: pages are read whole."""
    if seen.engines is None:
        return found

    def kept(rows: Sequence[Json]) -> list[Json]:
        return [one for one in rows if (one["model_name"], one["engine"]) in (seen.engines or ())]

    others = [kept(its) for its in found["others"]]
    return {**found, "incidents": kept(found["incidents"]), "unjudged": kept(found["unjudged"]), "others": others}


def _attach_copied(incidents: Sequence[Json], fired: Mapping[EngineName, Sequence[Fired]]) -> list[Json]:
    """Put every copied alert to the incidents that it fired in; give those that fired in none."""
    by_engine: dict[EngineName, list[Json]] = {}
    for incident in incidents:
        by_engine.setdefault(engine_of(incident), []).append(incident)
    elsewhere = []
    for engine, its in fired.items():
        for one in its:
            mine = [incident for incident in by_engine.get(engine, ()) if _overlaps(incident, one)]
            for incident in mine:
                incident["fired"].append(fired_json(one))
            if not mine:
                names = {"target": engine.target, "model_name": engine.model_name, "engine": engine.rank}
                elsewhere.append({**names, "rule": one.rule, "at": one.at, "ended": one.ended})
    return sorted(elsewhere, key=lambda one: (one["at"], one["target"], one["engine"], one["rule"]))


def _overlaps(incident: Json, fired: Fired) -> bool:
    began, ended = incident["began"], incident["ended"]
    before = fired.ended is None or fired.ended >= began - LATE_SECONDS
    return before and (ended is None or fired.at <= ended + LATE_SECONDS)
