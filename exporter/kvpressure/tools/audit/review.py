"""Runs the checklist over everything that was given."""

from __future__ import annotations

from collections.abc import Callable, Collection

from kvpressure.config.thresholds import Thresholds
from kvpressure.tools.audit.annotations import unreadable
from kvpressure.tools.audit.checks import CHECKS
from kvpressure.tools.audit.checks.context import Context
from kvpressure.tools.audit.discovery import find_engines
from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.manifests import Manifests
from kvpressure.tools.audit.model import Finding, Report, Reviewed
from kvpressure.tools.audit.sizing import NOTHING_KNOWN, Knowledge, size

Progress = Callable[[int, int], None]


def audit(
    given: Manifests,
    thresholds: Thresholds,
    skip: Collection[str] = (),
    knowledge: Knowledge = NOTHING_KNOWN,
    progress: Progress = lambda done, total: None,  # noqa: ARG005 - nobody waits
) -> Report:
    """Judge every engine by every check but those in `skip` (names in `CHECKS`); values come from `knowledge`.

    `progress` is told after each engine how many are done, of how many.
    """
    engines, problems = find_engines(given)
    said = (problem for engine in engines for problem in unreadable(engine))
    sized = {id(engine): size(engine, knowledge, thresholds) for engine in engines}
    context = Context(given, tuple(engines), thresholds, sized)
    reviewed = []
    for engine in engines:
        reviewed.append(_reviewed(engine, context, skip))
        progress(len(reviewed), len(engines))
    return Report(
        tuple(reviewed),
        tuple(dict.fromkeys((*given.problems, *problems, *said))),
    )


def _reviewed(engine: Engine, context: Context, skip: Collection[str]) -> Reviewed:
    return Reviewed(
        title=engine.title,
        kind=engine.item.kind or engine.title.split("/", 1)[0],
        namespace=engine.namespace,
        name=engine.title.split("/", 1)[1],
        container=engine.container,
        place=engine.place(),
        limits=engine.reading.limits,
        findings=_findings(engine, context, skip),
    )


def _findings(engine: Engine, context: Context, skip: Collection[str]) -> list[Finding]:
    found = []
    for check in CHECKS:
        if check.name not in skip:
            verdict = check.judge(engine, context)
            place = verdict.place or engine.place()
            found.append(Finding(check.name, check.level, verdict.status, verdict.reason, place, verdict.fix))
    return found
