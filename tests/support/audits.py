"""What an audit says of one engine, wherever it says it."""

from kvpressure_planner.audit import Report
from kvpressure_planner.audit.engine import Engine
from kvpressure_planner.audit.model import Finding


def findings_of(report: Report, engine: Engine) -> dict[str, Finding]:
    """Return the finding of each check: the engine's own, else that which is said once of all, or with its options."""
    found = {finding.check: finding for finding in engine.findings}
    left_open = found["options"].reason.partition("which leaves open: ")[2] if "options" in found else ""
    of_all = {finding.check: finding for finding in report.of_all}
    return {**of_all, **{name: found["options"] for name in left_open.split(", ") if name}, **found}


def only(report: Report) -> dict[str, Finding]:
    """Return the findings of a report's only engine."""
    (engine,) = report.engines
    return findings_of(report, engine)
