"""The report as one JSON object, and as SARIF 2.1.0, for code review.

The shape of the first is described in docs/audit.md and only ever grows. In SARIF failures are results, and what could
not be read is a notification; what passed or is unknown is left out: reviewers' tools show every result as something to
fix.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import quote

from kvpressure.model.environment import LIMIT_NAMES
from kvpressure.tools.audit.checks import CHECKS
from kvpressure.tools.audit.model import STATUSES, Finding, Place, Report, Reviewed

VERSION: Final = 1
SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_RULE_INDEX: Final = {check.name: index for index, check in enumerate(CHECKS)}


def as_json(report: Report) -> dict[str, Any]:
    """Engines with their findings, what could not be read, and the counts."""
    return {
        "version": VERSION,
        "engines": [_engine(engine) for engine in report.engines],
        "problems": [{**asdict(problem.place), "message": problem.message} for problem in report.problems],
        "summary": {status: report.count(status) for status in STATUSES},
    }


def _engine(engine: Reviewed) -> dict[str, Any]:
    limits = {name: engine.limits[name] for name in LIMIT_NAMES if name in engine.limits}
    return {
        "kind": engine.kind,
        "namespace": engine.namespace,
        "name": engine.name,
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
    """One run; `version` is the program's."""
    results = [_result(engine, one) for engine in report.engines for one in engine.findings if one.status == "fail"]
    rules = [
        {
            "id": check.name,
            "shortDescription": {"text": check.title},
            "fullDescription": {"text": f"{check.title}. {check.help}"},
            "help": {"text": check.help},
            "defaultConfiguration": {"level": check.level},
        }
        for check in CHECKS
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


def _result(engine: Reviewed, finding: Finding) -> dict[str, Any]:
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
    """Return a file by its path, which a review resolves against the repository; a cluster and stdin have none."""
    if place.file in {"cluster", "stdin"}:
        return {}
    physical: dict[str, Any] = {"artifactLocation": {"uri": quote(place.file.replace("\\", "/"))}}
    if place.line is not None:
        physical["region"] = {"startLine": place.line}
    return {"physicalLocation": physical}
