"""The default output of `triage`: an engine's verdict, three facts and one step, or a line for each of several.

`report` has all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from kvpressure.cli.findings import Finding
from kvpressure.cli.fleet import WorkloadFinding, replica_name, workload_report, workloads
from kvpressure.cli.report import command_lines, expected, hanging, name_of, numbers, problem, verdict_of
from kvpressure.exposition.wording import failures_text
from kvpressure.model.action import AFTER, Action, step_without_gpu, why_none_without_gpu
from kvpressure.model.values import at
from kvpressure.model.verdict import Cause
from kvpressure.printable import clean

MAX_FACTS = 3
COUNTED = "REPLICAS"
"""A placeholder that its own line explains."""


def brief_report(findings: Sequence[Finding], now: float) -> Group:
    """Return the report, by workload: of a single replica its facts and first step, of several a line each."""
    parts: list[RenderableType] = []
    for found in workloads(findings):
        parts += _several(found) if len(found.replicas) > 1 else _single(found.replicas[0], now)
        parts.append(Text(""))
    return Group(*parts)


def _single(finding: Finding, now: float) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(name_of(finding), style="bold underline"), *verdict_of(finding, now)]
    parts += [hanging("  - ", fact) for fact in list(facts_of(finding))[:MAX_FACTS]]
    parts += problem(finding)
    parts += _step(finding) if finding.actions else []
    if finding.view is not None:
        steps = len(finding.actions) - 1
        more = f", {steps} more steps" if steps > 1 else ", one more step" if steps == 1 else ""
        parts.append(Text(f"--full: all evidence{more}", style="dim"))
    return parts


def _several(found: WorkloadFinding) -> list[RenderableType]:
    parts = workload_report(found)
    worst = found.worst
    if found.step:
        parts.append(Text(f"Do: {found.step}", style="bold"))
    elif worst is not None and worst.actions:
        parts += [Text(clean(f"First on {replica_name(worst, found.replicas)}:")), *_step(worst)]
    return [*parts, Text("--full: all evidence and every step of each replica", style="dim")]


def facts_of(finding: Finding) -> Iterator[str]:
    """Yield the evidence, strongest first: the verdict's grounds, measured values, other symptoms that hold."""
    view, diagnosis = finding.view, finding.diagnosis
    if view is None or diagnosis is None:
        return
    if diagnosis.grounds:
        yield clean(diagnosis.grounds)
    if shown := numbers(view):
        yield shown
    if failures := failures_text(view.derived):
        yield f"{failures}."
    lost = at(view.derived, "lost_tokens_total")
    if lost is not None and lost >= 1 and diagnosis.cause not in (Cause.HEALTHY, Cause.IDLE):
        yield f"Tokens lost while this was watched: {lost:,.0f}."
    for evidence in diagnosis.symptoms.values():
        if evidence.state and evidence.text.casefold() not in diagnosis.grounds.casefold():
            yield clean(f"{evidence.symptom}: {evidence.text}")


def _step(finding: Finding) -> list[RenderableType]:
    first = finding.actions[0]
    change = f": {' -> '.join(filter(None, (first.current, first.new)))}" if first.new else ""
    do = "Do after the incident" if first.when == AFTER else "Do"
    parts: list[RenderableType] = [Text(clean(f"{do}: {first.title}{change}"), style="bold")]
    parts += expected(first)
    if set(first.placeholders) - {COUNTED}:
        parts.append(Text("  for its commands: --full and --workload KIND/NAME", style="dim"))
    else:
        parts += command_lines(first)
    return [*parts, *_without_gpu(finding.actions)]


def _without_gpu(actions: Sequence[Action]) -> list[RenderableType]:
    """Return the best step that needs no more GPUs, beside a first one that does; else why there is none."""
    first, step = actions[0], step_without_gpu(actions)
    if not first.needs_gpu:
        return []
    if step is not None:
        change = f": {' -> '.join(filter(None, (step.current, step.new)))}" if step.new else ""
        when = ", after the incident" if step.when == AFTER else ""
        return [Text(clean(f"Without a GPU{when}: {step.title}{change}"), style="bold"), *expected(step)]
    return [hanging("Without a GPU: ", why_none_without_gpu(actions))]
