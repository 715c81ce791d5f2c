"""The report as SARIF 2.1.0, for code review: failures are results, what could not be read is a notification.

What passed or is unknown is left out: reviewers' tools show every result as something to fix.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final
from urllib.parse import quote

from kvpressure.tools.audit.checks import CHECKS, Check
from kvpressure.tools.audit.model import Finding, Place, Problem, Report, Reviewed

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_RULE_INDEX: Final = {check.name: index for index, check in enumerate(CHECKS)}


def as_sarif(report: Report, version: str) -> dict[str, Any]:
    """One run; `version` is the program's."""
    results = [_result(engine, one) for engine in report.engines for one in engine.findings if one.status == "fail"]
    driver = {"name": "kvpressure-audit", "version": version, "rules": [_rule(check) for check in CHECKS]}
    invocation = {
        "executionSuccessful": bool(report.engines),
        "toolExecutionNotifications": [_notification(problem) for problem in report.problems],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(check: Check) -> dict[str, Any]:
    return {
        "id": check.name,
        "shortDescription": {"text": check.title},
        "fullDescription": {"text": f"{check.title}. {check.help}"},
        "help": {"text": check.help},
        "defaultConfiguration": {"level": check.level},
    }


def _result(engine: Reviewed, finding: Finding) -> dict[str, Any]:
    full_name = "/".join(filter(None, (engine.namespace, engine.title, engine.container)))
    logical = {"fullyQualifiedName": full_name, "kind": "resource"}
    fix = f" Fix:\n{finding.fix}" if finding.fix else ""
    return {
        "ruleId": finding.check,
        "ruleIndex": _RULE_INDEX[finding.check],
        "kind": "fail",
        "level": finding.level,
        "message": {"text": f"{engine.title}: {finding.reason}.{fix}"},
        "locations": [{**_location(finding.place), "logicalLocations": [logical]}],
        "partialFingerprints": {"kvpressureAudit/v1": _fingerprint(finding.check, finding.place.file, full_name)},
    }


def _notification(problem: Problem) -> dict[str, Any]:
    return {"level": "error", "message": {"text": problem.message}, "locations": [_location(problem.place)]}


def _location(place: Place) -> dict[str, Any]:
    """Return a file by its path, which a review resolves against the repository; a cluster and stdin have none."""
    if place.file in {"cluster", "stdin"}:
        return {}
    physical: dict[str, Any] = {"artifactLocation": {"uri": quote(place.file.replace("\\", "/"))}}
    if place.line is not None:
        physical["region"] = {"startLine": place.line}
    return {"physicalLocation": physical}


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
