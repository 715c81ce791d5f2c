"""The report as one JSON object; its shape is described in docs/audit.md and only ever grows."""

from __future__ import annotations

from typing import Any, Final

from kvpressure.model.environment import LIMIT_NAMES
from kvpressure.tools.audit.model import STATUSES, Finding, Place, Report, Reviewed

VERSION: Final = 1


def as_json(report: Report) -> dict[str, Any]:
    """Engines with their findings, what could not be read, and the counts."""
    return {
        "version": VERSION,
        "engines": [_engine(engine) for engine in report.engines],
        "problems": [{**_place(problem.place), "message": problem.message} for problem in report.problems],
        "summary": {status: report.count(status) for status in STATUSES},
    }


def _engine(engine: Reviewed) -> dict[str, Any]:
    limits = {name: engine.limits[name] for name in LIMIT_NAMES if name in engine.limits}
    return {
        "kind": engine.kind,
        "namespace": engine.namespace,
        "name": engine.name,
        "container": engine.container,
        **_place(engine.place),
        "limits": {name: {"value": limit.value, "where": limit.where} for name, limit in limits.items()},
        "checks": [_finding(finding) for finding in engine.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "status": finding.status,
        "level": finding.level,
        "reason": finding.reason,
        **_place(finding.place),
        "fix": finding.fix or None,
    }


def _place(place: Place) -> dict[str, Any]:
    return {"file": place.file, "line": place.line}
