"""Prints an audit for people: a table of checks per engine, then what to paste."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvpressure.audit.model import STATUSES, Finding, Report, Reviewed, Status
from kvpressure.cli.report import INDENT, Line
from kvpressure.printable import clean

FIX: Final = "  Fix"
_STYLES: Final[dict[Status, str]] = {"pass": "green", "fail": "bold red", "unknown": "yellow"}


def report(result: Report) -> Group:
    """Every engine with its checks in their order, and the counts."""
    parts: list[RenderableType] = []
    for engine in result.engines:
        parts += [Text(heading(engine), style="bold"), Padding(_table(engine), (0, 0, 0, 2))]
        parts += [*_fixes(engine), Text("")]
    return Group(*parts, Text(counts(result)))


def counts(result: Report) -> str:
    """How many engines there are, and findings of each status."""
    engines = f"{len(result.engines)} engine{'' if len(result.engines) == 1 else 's'}"
    return f"{engines}: {', '.join(f'{result.count(status)} {status}' for status in STATUSES)}"


def heading(engine: Reviewed) -> str:
    """Which engine it is, and where."""
    namespace = f" in namespace {engine.namespace}" if engine.namespace else ""
    return clean(f"{engine.title}{namespace}, container {engine.container} ({engine.place})")


def _table(engine: Reviewed) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("status", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("line", no_wrap=True, justify="right")
    table.add_column("found", overflow="fold")
    for finding in engine.findings:
        status = Text(finding.status, style=_STYLES[finding.status])
        table.add_row(status, finding.check, line_of(finding, engine), Text(clean(finding.reason)))
    return table


def line_of(finding: Finding, engine: Reviewed) -> str:
    """The number alone within the engine's own file."""
    if finding.place.line is None:
        return ""
    elsewhere = "" if finding.place.file == engine.place.file else "*"
    return f"{finding.place.line}{elsewhere}"


def places_elsewhere(engine: Reviewed) -> Iterator[str]:
    """What the stars of the table stand for."""
    for finding in engine.findings:
        if finding.place.line is not None and finding.place.file != engine.place.file:
            yield clean(f"  * {finding.check}: {finding.place}")


def fix_lines(engine: Reviewed) -> Iterator[tuple[str, bool]]:
    """Everything under the table that says how to fix it, and whether the line is to be pasted."""
    fixed = [finding for finding in engine.findings if finding.status == "fail" and finding.fix]
    if fixed:
        yield FIX, False
    for finding in fixed:
        yield clean(f"   {finding.check}, {finding.place}"), False
        yield from ((f"     {clean(line)}", True) for line in finding.fix.splitlines())


def _fixes(engine: Reviewed) -> Iterator[RenderableType]:
    yield from (Text(place, style="dim") for place in places_elsewhere(engine))
    for text, pasted in fix_lines(engine):
        yield Line(text.removeprefix(INDENT), "cyan") if pasted else Text(text, style="bold" if text == FIX else "dim")
