"""PURE: manifests to checks to findings, what `kvpressure audit` prints: the checklist over every engine in them.

The report as one JSON object, and as SARIF 2.1.0, for code review. The shape of the first is described in docs/audit.md
and only ever grows. In SARIF failures are results, and what could not be read is a notification; what passed or is
unknown is left out: reviewers' tools show every result as something to fix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from kvpressure.capacity.gpus import GPUS, gpu_named, nearest_gpus
from kvpressure.commandline.options import human
from kvpressure.config.thresholds import Thresholds
from kvpressure.launch import ANNOTATIONS
from kvpressure.model.environment import LIMIT_NAMES
from kvpressure_planner.audit import playbook, walk
from kvpressure_planner.audit.checks import CHECKS
from kvpressure_planner.audit.checks.context import TRAFFIC, TRAFFIC_WORDS, Context, traffic
from kvpressure_planner.audit.engine import Engine
from kvpressure_planner.audit.manifests import Item, Manifests, from_objects, get, mapping, read, sequence, text
from kvpressure_planner.audit.model import LEVELS, STATUSES, Finding, Level, Once, Place, Problem, Status
from kvpressure_planner.audit.places import GPU_ANNOTATION
from kvpressure_planner.audit.sizing import NOTHING_KNOWN, OUTPUT, PROMPT, Knowledge, size

__all__ = ["Finding", "Knowledge", "Manifests", "Problem", "Report", "audit", "from_objects", "read"]

Progress = Callable[[int, int], None]
OPTIONS: Final = "options"
_NAMED: Final = 3
"""Engines that are named where something is said of several."""


@dataclass(frozen=True, slots=True)
class Report:
    """All engines with their findings, what could not be read, and findings that hold of more than one engine."""

    engines: tuple[Engine, ...]
    problems: tuple[Problem, ...]
    of_all: tuple[Finding, ...] = ()

    def findings(self) -> Iterator[Finding]:
        """Yield those of each engine, then those of all of them."""
        for engine in self.engines:
            yield from engine.findings
        yield from self.of_all

    def count(self, status: Status) -> int:
        """Return how many findings have this status."""
        return sum(finding.status == status for finding in self.findings())

    def exit_code(self, least: Level = "warning") -> int:
        """Return 1 when something of this level or above failed, 0 when nothing did, 2 when no engine was found."""
        if not self.engines:
            return 2
        counted = LEVELS[LEVELS.index(least) :]
        return int(any(finding.status == "fail" and finding.level in counted for finding in self.findings()))


def find_engines(given: Manifests) -> tuple[list[Engine], list[Problem]]:
    """Return the engines in reading order, and the problems: what could not be read.

    An object whose owner is among the manifests is skipped: the owner describes the same pods. The texts of a ConfigMap
    are read where an engine mounts them, else by themselves.
    """
    owners = {(item.kind, item.name, item.namespace) for item in given.items}
    parts = [part for item in given.items if not _owned(item, owners) for part in walk.engines(item, given)]
    engines = [part for part in parts if isinstance(part, Engine)]
    used = {(id(item), path) for part in engines for item, path in part.mounted.values()}
    for item in given.of("ConfigMap"):
        for key, value in mapping(item.data.get("data")).items():
            if (id(item), ("data", key)) not in used:
                engines += walk.in_config_map(item, ("data", key), text(value), given)
    return engines, list(dict.fromkeys(part for part in parts if isinstance(part, Problem)))


def _owned(item: Item, owners: set[tuple[str, str, str]]) -> bool:
    references = sequence(get(item.data, "metadata", "ownerReferences"))
    return any(
        (text(get(reference, "kind")), text(get(reference, "name")), item.namespace) in owners
        for reference in references
    )


def audit(
    given: Manifests,
    thresholds: Thresholds,
    skip: Collection[str] = (),
    knowledge: Knowledge = NOTHING_KNOWN,
    progress: Progress = lambda done, total: None,  # noqa: ARG005 - nobody waits
    *,
    by_playbook: bool = False,
) -> Report:
    """Judge every engine by every check but those in `skip` (names in `CHECKS`); values come from `knowledge`.

    `progress` is called after each engine with how many are done, and of how many.
    """
    engines, problems = find_engines(given)
    ignored = (
        Problem(
            f"annotation {name} of {engine.title}: {engine.annotations[name]!r} {why}; it counts as not given",
            engine.annotation_place(name),
        )
        for engine in engines
        for name, why in _wrong_annotations(engine)
    )
    sized = {id(engine): size(engine, knowledge, thresholds) for engine in engines}
    context = Context(given, tuple(engines), thresholds, sized, knowledge)
    reviewed, of_all = list[Engine](), dict[tuple[str, str], list[tuple[Engine, Finding]]]()
    for engine in engines:
        own = list[Finding]()
        for finding, once in _findings(engine, context, skip, by_playbook=by_playbook):
            if once == "all":
                of_all.setdefault((finding.check, finding.reason), []).append((engine, finding))
            else:
                own.append(finding)
        reviewed.append(replace(engine, findings=tuple(own)))
        progress(len(reviewed), len(engines))
    problems = [*given.problems, *problems, *ignored]
    said = tuple(_said_once(each, len(engines)) for each in of_all.values())
    return Report(tuple(reviewed), tuple(dict.fromkeys(problems)), said)


def _said_once(of_engines: Sequence[tuple[Engine, Finding]], count: int) -> Finding:
    """Return what is said of several engines, with their names where it is not of all."""
    names = [engine.title for engine, _ in of_engines]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    finding = of_engines[0][1]
    whose = "" if len(names) == count else f": {', '.join(names[:_NAMED])}{more}"
    return replace(finding, reason=f"{finding.reason}{whose}")


def _findings(
    engine: Engine, context: Context, skip: Collection[str], *, by_playbook: bool
) -> Iterator[tuple[Finding, Once]]:
    """Yield what each check says, and whether it is said once of all engines.

    What is unknown because the command is not known whole is said once, with the options.
    """
    listed = [check for check in ((*CHECKS, *playbook.CHECKS) if by_playbook else CHECKS) if check.name not in skip]
    judged = ((check, check.judge(engine, context)) for check in listed)
    made = [(check, verdict) for check, verdict in judged if verdict is not None]
    verdicts = {check.name: verdict for check, verdict in made}
    if by_playbook:
        verdicts = {name: playbook.judged(name, engine, verdict) for name, verdict in verdicts.items()}
    options = verdicts.get(OPTIONS)
    open_too = [name for name, verdict in verdicts.items() if verdict.once == "engine" and name != OPTIONS]
    if options is None or options.once != "engine":
        open_too = []
    elif open_too:
        options = replace(options, reason=f"{options.reason}, which leaves open: {', '.join(open_too)}")
    for check, _ in made:
        verdict = options if check.name == OPTIONS and options is not None else verdicts[check.name]
        if check.name not in open_too:
            place = verdict.place or check.at(engine)
            finding = Finding(check.name, check.level, verdict.status, verdict.reason, place, verdict.fix)
            yield finding, verdict.once


def _wrong_annotations(engine: Engine) -> Iterator[tuple[str, str]]:
    """Yield the annotations that are ignored, and why."""
    given = engine.annotations
    for name in (PROMPT, OUTPUT, *ANNOTATIONS.values()):
        if name in given and human(given[name]) is None:
            yield name, "is no number of tokens, such as 4096 or 4k"
    for name, other in ((PROMPT, OUTPUT), (OUTPUT, PROMPT)):
        if name in given and other not in given and human(given[name]) is not None:
            yield name, f"says nothing without {other}"
    if (gpu := given.get(GPU_ANNOTATION, "").strip()) and gpu_named(gpu) is None:
        near = " or ".join(nearest_gpus(gpu))
        yield GPU_ANNOTATION, f"is no GPU that is known ({f'did you mean {near}?' if near else ', '.join(GPUS)})"
    if unknown := traffic(engine) - TRAFFIC_WORDS:
        yield TRAFFIC, f"has {', '.join(sorted(unknown))}, and the words are {', '.join(sorted(TRAFFIC_WORDS))}"


VERSION: Final = 1
SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_RULE_INDEX: Final = {check.name: index for index, check in enumerate((*CHECKS, *playbook.CHECKS))}


def as_json(report: Report) -> dict[str, Any]:
    """Return the engines with their findings, what could not be read, and the counts."""
    return {
        "version": VERSION,
        "engines": [_engine_json(engine) for engine in report.engines],
        "checks": [{"check": each.check, "status": each.status, "reason": each.reason} for each in report.of_all],
        "problems": [{**asdict(problem.place), "message": problem.message} for problem in report.problems],
        "summary": {status: report.count(status) for status in STATUSES},
    }


def _engine_json(engine: Engine) -> dict[str, Any]:
    kind, _, name = engine.title.partition("/")
    limits = {name: limit for name in LIMIT_NAMES if (limit := engine.reading.limits.get(name))}
    return {
        "kind": engine.item.kind or kind,
        "namespace": engine.namespace,
        "name": name,
        "container": engine.container,
        **asdict(engine.place),
        "limits": {name: {"value": limit.value, "where": limit.where} for name, limit in limits.items()},
        "checks": [
            {
                "check": finding.check,
                "status": finding.status,
                "level": finding.level,
                "reason": finding.reason,
                **asdict(finding.place),
                "fix": finding.fix or None,
            }
            for finding in engine.findings
        ],
    }


def as_sarif(report: Report, version: str) -> dict[str, Any]:
    """Return a SARIF log with one run; `version` is the program's."""
    results = [
        _result(engine, finding) for engine in report.engines for finding in engine.findings if finding.status == "fail"
    ]
    rules = [
        {
            "id": check.name,
            "shortDescription": {"text": check.title},
            "fullDescription": {"text": f"{check.title}. {check.help}"},
            "help": {"text": check.help},
            "defaultConfiguration": {"level": check.level},
        }
        for check in (*CHECKS, *playbook.CHECKS)
    ]
    unread = [
        {"level": "error", "message": {"text": problem.message}, "locations": [_location(problem.place)]}
        for problem in report.problems
    ]
    run = {
        "tool": {"driver": {"name": "kvpressure-audit", "version": version, "rules": rules}},
        "invocations": [{"executionSuccessful": bool(report.engines), "toolExecutionNotifications": unread}],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(engine: Engine, finding: Finding) -> dict[str, Any]:
    full_name = "/".join(filter(None, (engine.namespace, engine.title, engine.container)))
    logical = {"fullyQualifiedName": full_name, "kind": "resource"}
    fix = f" Fix:\n{finding.fix}" if finding.fix else ""
    digest = hashlib.sha256("\n".join((finding.check, finding.place.file, full_name)).encode()).hexdigest()
    return {
        "ruleId": finding.check,
        "ruleIndex": _RULE_INDEX[finding.check],
        "kind": "fail",
        "level": finding.level,
        "message": {"text": f"{engine.title}: {finding.reason}.{fix}"},
        "locations": [{**_location(finding.place), "logicalLocations": [logical]}],
        "partialFingerprints": {"kvpressureAudit/v1": digest[:32]},
    }


def _location(place: Place) -> dict[str, Any]:
    """Return a file's location, relative to the repository; {} for a cluster or stdin, which have none."""
    if place.file in {"cluster", "stdin"}:
        return {}
    physical: dict[str, Any] = {"artifactLocation": {"uri": quote(place.file.replace("\\", "/"))}}
    if place.line is not None:
        physical["region"] = {"startLine": place.line}
    return {"physicalLocation": physical}
