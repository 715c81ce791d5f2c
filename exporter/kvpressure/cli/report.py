"""Prints findings for people: colours and tables on a terminal, plain text elsewhere.

Command lines are never wrapped, so that they can be pasted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from kvpressure.advice.advise import Action
from kvpressure.advice.shell import PLACEHOLDERS
from kvpressure.cli.findings import Finding, advised, worst_first
from kvpressure.cli.say import say
from kvpressure.exposition.wording import NOT_KNOWN, STAGES, by_time, duration, meaning, quantity, query_in_words
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.samples import SourceHealth
from kvpressure.model.values import at
from kvpressure.model.verdict import Diagnosis, Stage
from kvpressure.model.view import CALM, EngineView, GpuView, role_of
from kvpressure.printable import clean, clean_lines

WIDTH = 100
"""Columns of a report; narrower terminals get narrower ones."""

_VERDICTS = {True: ("YES", "bold red"), False: ("no", "green"), None: ("?", "dim")}


class CleanConsole(Console):
    """A console whose texts are clean whatever was put into them; its own colours and cursor movements are not text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments as ever, with clean texts."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean_lines(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    """Return a console of at most `WIDTH` columns; NO_COLOR and pipes are respected."""
    made = CleanConsole(stderr=stderr, highlight=False, emoji=False, markup=False)
    made.width = min(made.width, WIDTH) if made.is_terminal else WIDTH
    return made


def progress(unit: str) -> Progress:
    """Return a bar on standard error, which counts in `unit`; nothing is shown where that is no terminal."""
    err = console(stderr=True)
    count = TextColumn("{task.completed:.0f} of {task.total:.0f} " + unit)
    words = TextColumn("{task.description}"), BarColumn(), count
    return Progress(*words, console=err, transient=True, disable=not err.is_terminal)


class Line:
    """One line that is never wrapped or cut, whatever the width: a command to paste."""

    def __init__(self, text: str, style: str) -> None:
        self._text, self._style = f"     {clean(text)}", style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Return the whole line as one segment."""
        yield Segment(self._text, console.get_style(self._style, default=Style.null()))
        yield Segment.line()


def show(out: Console, report: RenderableType) -> None:
    """Print a report; its commands may be longer than the console is wide."""
    if out.is_terminal:
        out.print(report, crop=False)
        return
    with out.capture() as captured:
        out.print(report, crop=False)
    say(*(line.rstrip() for line in captured.get().splitlines()))


def triage_report(findings: Sequence[Finding], now: float, *, commands: bool = True) -> Group:
    """Verdict and evidence of every engine, worst first, with the advice for the worst of each target.

    Without `commands` it is an overview: what could not be judged, commands and checks are left out.
    """
    parts: list[RenderableType] = []
    shown = advised(findings)
    for finding in worst_first(findings):
        parts += _verdict(finding, now, whole=commands)
        if finding in shown:
            parts += advice(finding.actions, commands=commands)
        parts.append(Text(""))
    if commands and len(findings) > 1:
        parts += [Text("In short", style="bold"), *(Text(verdict_line(one, now)) for one in worst_first(findings))]
    return Group(*parts)


def advice_report(findings: Sequence[Finding]) -> Group:
    """Return the actions only, under one line per engine that they are for."""
    parts: list[RenderableType] = []
    for finding in advised(findings):
        said = [CATALOGUE[finding.cause].label]
        if (diagnosis := finding.diagnosis) is not None:
            said = [cause_words(diagnosis), *filter(None, [clean(diagnosis.grounds)])]
        parts += [Text(name_of(finding), style="bold underline"), Text("\n".join([*said, ""]))]
        parts += problem(finding)
        if finding.actions:
            parts += advice(finding.actions)
        elif finding.view is not None:  # what was never read may well need something
            parts.append(Text("Nothing to do.\n"))
    return Group(*parts)


def cause_words(diagnosis: Diagnosis, *, loud: bool = False) -> str:
    """Cause, its detail and stage. Under KV cache pressure "pressure building" would repeat the cause and play it down.

    The detail is spelled as on the series; a `loud` cause is in capitals.
    """
    plain = CATALOGUE[diagnosis.cause].of_cache and diagnosis.stage is Stage.BUILDING
    label = CATALOGUE[diagnosis.cause].label
    detail = f" ({diagnosis.detail})" if diagnosis.detail else ""
    cause = f"{label.upper() if loud else label}{detail}"
    return ", ".join(filter(None, (cause, "" if plain else STAGES[diagnosis.stage])))


def verdict_line(finding: Finding, now: float) -> str:
    """One engine in one line, for logs."""
    if (diagnosis := finding.diagnosis) is None:
        return f"{clean(finding.target)}: {CATALOGUE[finding.cause].label}: {clean(finding.problem)}"
    return f"{name_of(finding)}: {_gone(finding)}{_sentence(diagnosis, now)}"


def advice(actions: Sequence[Action], *, commands: bool = True) -> list[RenderableType]:
    """Numbered actions, without their commands and checks where only an overview is wanted."""
    if not actions:
        return []
    parts: list[RenderableType] = [Text("What to do, in this order\n", style="bold")]
    for title, group in by_time(actions):
        parts.append(Text(f"{title}\n" if commands else title, style="bold"))
        parts += [part for action in group for part in (_action(action) if commands else [_short(action)])]
    return parts + (placeholders(actions) if commands else [])


def gpu_table(gpus: Sequence[GpuView], health: Sequence[SourceHealth]) -> Group:
    """Return the GPUs of this machine, and why they cannot be read."""
    table = _table("GPU", "name", "memory", "busy")
    for gpu in gpus:
        used, total = at(gpu.derived, "gpu_memory_used_bytes"), at(gpu.derived, "gpu_memory_total_bytes")
        memory = NOT_KNOWN if used is None or not total else f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB"
        busy = at(gpu.derived, "gpu_utilization_ratio")
        name = clean(gpu.sample.name or gpu.sample.vendor)
        table.add_row(clean(gpu.sample.index), name, memory, NOT_KNOWN if busy is None else quantity(busy, "ratio"))
    parts: list[RenderableType] = [table] if gpus else []
    for one in health:
        why = f"not present on this machine ({one.error})" if one.absent else one.error
        parts += [] if one.up else [Text(clean(f"{one.source}: {why}") + "\n", style="dim")]
    return Group(*parts)


def verdict_of(finding: Finding, now: float) -> list[RenderableType]:
    """Return the line of the verdict; nothing of a target without one."""
    view, diagnosis = finding.view, finding.diagnosis
    if diagnosis is None or view is None:
        return []
    style = "green" if finding.cause in CALM else "yellow" if finding.exit_code == 2 else "bold red"
    return [Text(_gone(finding) + _sentence(diagnosis, now if view.silence is None else view.t), style=style)]


def _verdict(finding: Finding, now: float, *, whole: bool) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(name_of(finding), style="bold underline"), *verdict_of(finding, now)]
    view, diagnosis = finding.view, finding.diagnosis
    if diagnosis is not None and view is not None:
        parts.append(Text(f"{meaning(diagnosis)} {numbers(view)}\n"))
        if diagnosis.grounds:
            parts.append(Text(f"{clean(diagnosis.grounds)}\n"))
        parts += _evidence(diagnosis, whole=whole)
    return parts + problem(finding)


def problem(finding: Finding) -> list[RenderableType]:
    """Return why nothing can be told, or that the newest poll failed; nothing where neither is so."""
    if not finding.problem:
        return []
    said = "cannot tell: " if finding.view is None else "newest poll failed: "
    return [Text(f"{said}{clean(finding.problem)}", style="yellow")]


def name_of(finding: Finding) -> str:
    """Return the target, its model, its rank, and its role where prefill and decode are apart."""
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


def _gone(finding: Finding) -> str:
    """Return what comes before the verdict on an engine that does not answer any more."""
    view = finding.view
    if view is None or view.silence is None:
        return ""
    return f"NOT ANSWERING for {duration(view.silence.seconds)}; before that: "


_NUMBERS = (
    ("running", "sequences", ("requests_running",)),
    ("waiting", "sequences", ("requests_waiting",)),
    ("batch p95", "sequences", ("effective_batch_size_quantile", "0.95")),
    ("KV cache", "ratio", ("kv_cache_usage_ratio",)),
    ("tokens/s", "", ("tokens_per_second", "generation")),
)


def numbers(view: EngineView) -> str:
    """Return what the engine does, in one sentence; "" where nothing of it is known."""
    found = ((name, unit, at(view.derived, *path)) for name, unit, path in _NUMBERS)
    shown = [f"{name} {quantity(value, unit)}" for name, unit, value in found if value is not None]
    return f"{'Last' if view.silence is None else 'Its last'} minute: {', '.join(shown)}." if shown else ""


def _evidence(diagnosis: Diagnosis, *, whole: bool) -> list[RenderableType]:
    judged = [evidence for evidence in diagnosis.symptoms.values() if evidence.state is not None]
    missing = [evidence for evidence in diagnosis.symptoms.values() if evidence.state is None]
    table = _table("symptom", "value", "threshold", "verdict", "evidence")
    for evidence in sorted(judged, key=lambda one: not one.state):
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
        for one in diagnosis.missing:
            series = f" ({', '.join(one.series)})" if one.series else ""
            rows.add_row(Text("-", style="dim"), Text(clean(f"{one.what}{series}: {one.how}."), style="dim"))
        parts += [Text("Not there, and would tell more:", style="dim"), rows, Text("")]
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
    """Return what the action is expected to do, where that is predicted."""
    return [Text(clean(f"  expected: {action.expectation}"))] if action.expectation else []


def _named_rows() -> Table:
    rows = Table.grid(padding=(0, 1))
    rows.add_column(style="dim", no_wrap=True, width=6)
    rows.add_column(overflow="fold")
    return rows


def _checks(checks: Sequence[str]) -> list[RenderableType]:
    """Return the checks; of queries, which need an exporter, what the next triage has to show."""
    parts: list[RenderableType] = []
    for index, check in enumerate(checks):
        rows = _named_rows()
        rows.add_row("" if index else "verify", clean(query_in_words(check)))
        parts.append(Padding(rows, (0, 0, 0, 3)))
    return parts


def placeholders(actions: Sequence[Action]) -> list[RenderableType]:
    """Return what to fill in, once for all commands."""
    used = [name for name in PLACEHOLDERS if any(name in action.placeholders for action in actions)]
    if not used:
        return []
    rows = Table.grid(padding=(0, 2))
    for name in used:
        rows.add_row(Text(name, style="cyan"), PLACEHOLDERS[name])
    return [Text("Fill in", style="bold"), Padding(rows, (0, 0, 1, 3))]
