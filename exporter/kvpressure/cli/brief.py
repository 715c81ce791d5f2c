"""The default output of `triage`: each engine's verdict, three facts and one step; `report` has all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from kvpressure.cli.findings import Finding, advised, worst_first
from kvpressure.cli.report import command_lines, expected, hanging, name_of, numbers, problem, verdict_of
from kvpressure.model.action import AFTER, Action, step_without_gpu, why_none_without_gpu
from kvpressure.model.values import at
from kvpressure.model.verdict import Cause
from kvpressure.printable import clean

MAX_FACTS = 3
COUNTED = "REPLICAS"
"""A placeholder that its own line explains."""


def brief_report(findings: Sequence[Finding], now: float) -> Group:
    """Return the report, worst engine first, with the first step for the worst of each target."""
    shown = advised(findings)
    parts: list[RenderableType] = []
    for finding in worst_first(findings):
        parts += [Text(name_of(finding), style="bold underline"), *verdict_of(finding, now)]
        facts = list(facts_of(finding))
        parts += [hanging("  - ", fact) for fact in facts[:MAX_FACTS]]
        parts += problem(finding)
        step = finding in shown and bool(finding.actions)
        parts += _step(finding) if step else []
        if finding.view is not None:
            steps = len(finding.actions) - 1 if step else 0
            more = [f"{steps} more steps"] if steps > 1 else ["one more step"] if steps else []
            parts.append(Text(f"--full: all evidence{', ' if more else ''}{', '.join(more)}", style="dim"))
        parts.append(Text(""))
    return Group(*parts)


def facts_of(finding: Finding) -> Iterator[str]:
    """Yield the evidence, strongest first: the verdict's grounds, measured values, other symptoms that hold."""
    view, diagnosis = finding.view, finding.diagnosis
    if view is None or diagnosis is None:
        return
    if diagnosis.grounds:
        yield clean(diagnosis.grounds)
    if shown := numbers(view):
        yield shown
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
