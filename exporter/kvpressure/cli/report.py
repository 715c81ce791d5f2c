"""The reports of findings for people: colours and tables on a terminal, plain text elsewhere.

In brief an engine's verdict, three facts and one step, or a line for each of several; in full all evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvpressure.advice.shell import PLACEHOLDERS
from kvpressure.cli.console import Line
from kvpressure.cli.findings import Finding, advised, worst_first
from kvpressure.cli.fleet import WorkloadFinding, replica_name, workload_report, workloads
from kvpressure.exposition.wording import (
    NOT_KNOWN,
    STAGES,
    by_time,
    duration,
    failures_text,
    meaning,
    quantity,
    query_in_words,
    without_gpu_text,
)
from kvpressure.model.action import AFTER, Action, step_without_gpu, why_none_without_gpu
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.samples import SourceHealth
from kvpressure.model.values import at
from kvpressure.model.verdict import Cause, Diagnosis, Stage
from kvpressure.model.view import CALM, EngineView, GpuView, role_of
from kvpressure.printable import clean

_VERDICTS = {True: ("YES", "bold red"), False: ("no", "green"), None: ("?", "dim")}


def triage_report(findings: Sequence[Finding], now: float, *, commands: bool = True) -> Group:
    """Return verdict and evidence of every engine, worst first, with advice for the worst of each target.

    Without `commands` it is an overview, without unknown symptoms, commands and checks.
    """
    parts: list[RenderableType] = []
    shown = advised(findings)
    for finding in worst_first(findings):
        parts += _verdict(finding, now, whole=commands)
        if finding in shown:
            parts += advice(finding.actions, commands=commands)
        parts.append(Text(""))
    if commands and len(findings) > 1:
        parts += [
            Text("In short", style="bold"),
            *(Text(verdict_line(finding, now)) for finding in worst_first(findings)),
        ]
    return Group(*parts)


def advice_report(findings: Sequence[Finding]) -> Group:
    """Return the actions, with a line per engine."""
    parts: list[RenderableType] = []
    for finding in advised(findings):
        verdict = [CATALOGUE[finding.cause].label]
        if (diagnosis := finding.diagnosis) is not None:
            verdict = [cause_words(diagnosis), *filter(None, [clean(diagnosis.grounds)])]
        parts += [Text(name_of(finding), style="bold underline"), Text("\n".join([*verdict, ""]))]
        parts += problem(finding)
        if finding.actions:
            parts += advice(finding.actions)
        elif finding.view is not None:  # of an engine that was never read, nothing is known
            parts.append(Text("Nothing to do.\n"))
    return Group(*parts)


def cause_words(diagnosis: Diagnosis, *, loud: bool = False) -> str:
    """Return cause, detail as on the series, and stage; a `loud` cause is in capitals.

    The stage "pressure building" of KV cache pressure is left out: it repeats the cause, and sounds less serious.
    """
    plain = CATALOGUE[diagnosis.cause].of_cache and diagnosis.stage is Stage.BUILDING
    label = CATALOGUE[diagnosis.cause].label
    detail = f" ({diagnosis.detail})" if diagnosis.detail else ""
    cause = f"{label.upper() if loud else label}{detail}"
    return ", ".join(filter(None, (cause, "" if plain else STAGES[diagnosis.stage])))


def verdict_line(finding: Finding, now: float) -> str:
    """Return one engine's verdict on one line, for logs."""
    if (diagnosis := finding.diagnosis) is None:
        return f"{clean(finding.target)}: {CATALOGUE[finding.cause].label}: {clean(finding.problem)}"
    return f"{name_of(finding)}: {_silence(finding)}{_sentence(diagnosis, now)}"


def advice(actions: Sequence[Action], *, commands: bool = True) -> list[RenderableType]:
    """Return the numbered actions, with their commands and checks where `commands` is true."""
    if not actions:
        return []
    parts: list[RenderableType] = [Text("What to do, in this order\n", style="bold")]
    if beside := without_gpu_text(actions):
        parts.append(Text(f"{clean(beside)}\n"))
    for title, group in by_time(actions):
        parts.append(Text(f"{title}\n" if commands else title, style="bold"))
        parts += [part for action in group for part in (_action(action) if commands else [_short(action)])]
    return parts + (placeholders(actions) if commands else [])


def gpu_table(gpus: Sequence[GpuView], health: Sequence[SourceHealth]) -> Group:
    """Return the GPUs of this machine, and errors of their sources."""
    table = _table("GPU", "name", "memory", "busy")
    for gpu in gpus:
        used, total = at(gpu.derived, "gpu_memory_used_bytes"), at(gpu.derived, "gpu_memory_total_bytes")
        memory = NOT_KNOWN if used is None or not total else f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB"
        busy = at(gpu.derived, "gpu_utilization_ratio")
        name = clean(gpu.sample.name or gpu.sample.vendor)
        table.add_row(clean(gpu.sample.index), name, memory, NOT_KNOWN if busy is None else quantity(busy, "ratio"))
    parts: list[RenderableType] = [table] if gpus else []
    for source in health:
        why = f"not present on this machine ({source.error})" if source.absent else source.error
        parts += [] if source.up else [Text(clean(f"{source.source}: {why}") + "\n", style="dim")]
    return Group(*parts)


def verdict_of(finding: Finding, now: float) -> list[RenderableType]:
    """Return the line of the verdict, nothing for a target without one."""
    view, diagnosis = finding.view, finding.diagnosis
    if diagnosis is None or view is None:
        return []
    style = "green" if finding.cause in CALM else "yellow" if finding.exit_code == 2 else "bold red"
    return [Text(_silence(finding) + _sentence(diagnosis, now if view.silence is None else view.t), style=style)]


def _verdict(finding: Finding, now: float, *, whole: bool) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(name_of(finding), style="bold underline"), *verdict_of(finding, now)]
    view, diagnosis = finding.view, finding.diagnosis
    if diagnosis is not None and view is not None:
        failures = failures_text(view.derived)
        parts.append(Text(f"{meaning(diagnosis, view.runtime)} {numbers(view)}{' ' if failures else ''}{failures}\n"))
        if diagnosis.grounds:
            parts.append(Text(f"{clean(diagnosis.grounds)}\n"))
        parts += _evidence(diagnosis, whole=whole)
    return parts + problem(finding)


def problem(finding: Finding) -> list[RenderableType]:
    """Return why there is no verdict, or why the last poll failed, where either is so."""
    if not finding.problem:
        return []
    what = "no verdict: " if finding.view is None else "newest poll failed: "
    return [Text(f"{what}{clean(finding.problem)}", style="yellow")]


def name_of(finding: Finding) -> str:
    """Return target, model, rank, and the role in disaggregated prefill."""
    if (view := finding.view) is None:
        return clean(finding.target)
    rank, role = view.key.rank, role_of(view.derived)
    more = (f"engine {rank}" if rank else "", role)
    return clean(f"{finding.target}  {view.key.model_name}" + "".join(f"  {part}" for part in more if part))


def _sentence(diagnosis: Diagnosis, now: float) -> str:
    score = "" if diagnosis.score is None else f", pressure score {diagnosis.score:.2f}"
    since = f" for {duration(now - diagnosis.since)}" if diagnosis.since > 0 else ""
    words = cause_words(diagnosis, loud=True)
    return f"{words}{since}  (confidence {quantity(diagnosis.confidence, 'ratio')}{score})"


def _silence(finding: Finding) -> str:
    """Return the prefix of the verdict on a silent engine."""
    view = finding.view
    if view is None or view.silence is None:
        return ""
    return f"{finding.status.state.upper()} for {duration(view.silence.seconds)}; before that: "


_NUMBERS = (
    ("running", "sequences", ("requests_running",)),
    ("waiting", "sequences", ("requests_waiting",)),
    ("batch p95", "sequences", ("effective_batch_size_quantile", "0.95")),
    ("KV cache", "ratio", ("kv_cache_usage_ratio",)),
    ("tokens/s", "", ("tokens_per_second", "generation")),
)


_IN_VAIN_SECONDS: Final = 10.0
"""Between the ends of long answers nothing is admitted for shorter times all the while."""


def numbers(view: EngineView) -> str:
    """Return the engine's values in one sentence, "" where none is known."""
    values = ((name, unit, at(view.derived, *path)) for name, unit, path in _NUMBERS)
    shown = [f"{name} {quantity(value, unit)}" for name, unit, value in values if value is not None]
    in_vain = at(view.derived, "nothing_admitted_seconds") or 0.0
    served = view.diagnosis is not None and view.diagnosis.cause in CALM
    if in_vain >= _IN_VAIN_SECONDS and not served:
        shown.append(f"nothing admitted for {duration(in_vain)}")
    return f"{'Last' if view.silence is None else 'Its last'} minute: {', '.join(shown)}." if shown else ""


def _evidence(diagnosis: Diagnosis, *, whole: bool) -> list[RenderableType]:
    judged = [evidence for evidence in diagnosis.symptoms.values() if evidence.state is not None]
    missing = [evidence for evidence in diagnosis.symptoms.values() if evidence.state is None]
    table = _table("symptom", "value", "threshold", "verdict", "evidence")
    for evidence in sorted(judged, key=lambda evidence: not evidence.state):
        word, style = _VERDICTS[evidence.state]
        unit = "" if evidence.unit == "count" else evidence.unit
        numbers = (evidence.value, evidence.threshold)
        value, threshold = ("" if number is None else quantity(number, unit) for number in numbers)
        table.add_row(clean(evidence.symptom), value, threshold, Text(word, style=style), clean(evidence.text))
    parts: list[RenderableType] = [table, Text("")] if judged else []
    if missing and whole:
        by_reason: dict[str, list[str]] = {}
        for evidence in missing:
            reason = clean(evidence.text).removeprefix("not known: ").removeprefix("no ")
            by_reason.setdefault(reason, []).append(evidence.symptom)
        reasons = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
        parts.append(Text(f"Not judged, and what is missing: {reasons}.\n", style="dim"))
    if diagnosis.missing and whole:
        rows = Table.grid(padding=(0, 1))
        for missed in diagnosis.missing:
            series = f" ({', '.join(missed.series)})" if missed.series else ""
            rows.add_row(Text("-", style="dim"), Text(clean(f"{missed.what}{series}: {missed.how}."), style="dim"))
        parts += [Text("Missing evidence, which would make the verdict more certain:", style="dim"), rows, Text("")]
    return parts


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold", justify="right" if name in ("value", "threshold") else "left")
    return table


def _short(action: Action) -> Text:
    before = f"{action.current} -> " if action.current else ""
    change = f": {before}{action.new}" if action.new else ""
    expected = f"\n   expected: {action.expectation}" if action.expectation else ""
    return Text(clean(f"{action.order}. {action.title}{change}") + expected)


def _action(action: Action) -> list[RenderableType]:
    rows = _named_rows()
    words = (("now", action.current), ("new", action.new), ("why", action.why), ("cost", action.cost))
    for name, text in (*words, ("expect", action.expectation)):
        if text:
            rows.add_row(name, Text(clean(text), style="bold green" if name == "new" else ""))
    if action.commands:
        rows.add_row("run", "")
    title = Text(f"{action.order}. {clean(action.title)}", style="bold")
    return [title, Padding(rows, (0, 0, 0, 3)), *command_lines(action), *_checks(action.checks), Text("")]


def command_lines(action: Action) -> list[RenderableType]:
    """Return the action's commands, to paste."""
    return [Line(line, "dim" if line.startswith("#") else "cyan") for line in action.commands]


def expected(action: Action) -> list[RenderableType]:
    """Return the predicted effect of the action, where there is one."""
    return [hanging("  expected: ", action.expectation)] if action.expectation else []


def hanging(lead: str, text: str) -> Table:
    """Return a paragraph whose further lines begin below the text, not below its lead."""
    rows = Table.grid()
    rows.add_row(lead, Text(clean(text), overflow="fold"))
    return rows


def _named_rows() -> Table:
    rows = Table.grid(padding=(0, 1))
    rows.add_column(style="dim", no_wrap=True, width=6)
    rows.add_column(overflow="fold")
    return rows


def _checks(checks: Sequence[str]) -> list[RenderableType]:
    """Return the checks; queries, which need an exporter, in the words of the next triage."""
    parts: list[RenderableType] = []
    for index, check in enumerate(checks):
        rows = _named_rows()
        rows.add_row("" if index else "verify", clean(query_in_words(check)))
        parts.append(Padding(rows, (0, 0, 0, 3)))
    return parts


def placeholders(actions: Sequence[Action]) -> list[RenderableType]:
    """Return the placeholders to fill in, once for all commands."""
    used = [name for name in PLACEHOLDERS if any(name in action.placeholders for action in actions)]
    if not used:
        return []
    rows = Table.grid(padding=(0, 2))
    for name in used:
        rows.add_row(Text(name, style="cyan"), PLACEHOLDERS[name])
    return [Text("Fill in", style="bold"), Padding(rows, (0, 0, 1, 3))]


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
