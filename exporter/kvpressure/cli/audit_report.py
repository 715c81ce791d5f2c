"""Prints an audit for people: a table of checks per engine, then what to paste.

The lines are made here and not by rich's tables, which measure and wrap every cell several times: an audit may have
thousands of rows, and only their last column is ever wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich._wrap import divide_line
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from kvpressure.cli.report import WIDTH, console
from kvpressure.cli.say import say
from kvpressure.printable import clean
from kvpressure.tools.audit.model import STATUSES, Finding, Report, Reviewed, Status

Line = tuple[tuple[str, str], ...]
"""Pieces of text with their styles, "" for plain."""

_STYLES: Final[dict[Status, str]] = {"pass": "green", "fail": "bold red", "unknown": "yellow"}
_INDENT: Final = "  "
_GAP: Final = "  "
_MIN_REASON: Final = 20
"""Columns that the last column of the table keeps on the narrowest terminal."""


def show_audit(result: Report) -> None:
    """Print every engine with its checks in their order, and the counts."""
    out = console()
    if out.is_terminal:
        out.print(_Lines(result), crop=False)
    else:
        say(*("".join(text for text, _ in line).rstrip() for line in lines(result, WIDTH)))


def lines(result: Report, width: int) -> Iterator[Line]:
    """Yield the lines of an audit, at most `width` columns wide but for what is to be pasted."""
    for engine in result.engines:
        yield from _wrapped(_heading(engine), width, "bold")
        yield from _table(engine, width)
        for finding in engine.findings:
            if finding.place.line is not None and finding.place.file != engine.place.file:
                yield from _wrapped(clean(f"  * {finding.check}: {finding.place}"), width, "dim")
        yield from _fixes(engine, width)
        yield ()
    engines = f"{len(result.engines)} engine{'' if len(result.engines) == 1 else 's'}"
    yield from _wrapped(f"{engines}: {', '.join(f'{result.count(status)} {status}' for status in STATUSES)}", width)


class _Lines:
    """The same for a terminal."""

    def __init__(self, result: Report) -> None:
        self._result = result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        styles: dict[str, Style | None] = {"": None}
        for line in lines(self._result, options.max_width):
            for text, style in line:
                if style not in styles:
                    styles[style] = console.get_style(style)
                yield Segment(text, styles[style])
            yield Segment.line()


def _heading(engine: Reviewed) -> str:
    namespace = f" in namespace {engine.namespace}" if engine.namespace else ""
    return clean(f"{engine.title}{namespace}, container {engine.container} ({engine.place})")


def _table(engine: Reviewed, width: int) -> Iterator[Line]:
    numbers = [_line_number(finding, engine) for finding in engine.findings]
    status = max(len(word) for word in ("status", *(finding.status for finding in engine.findings)))
    check = max(len(word) for word in ("check", *(finding.check for finding in engine.findings)))
    number = max(len(word) for word in ("line", *numbers))
    begin = len(_INDENT) + status + check + number + 3 * len(_GAP)
    yield ((f"{_INDENT}{'status':<{status}}{_GAP}{'check':<{check}}{_GAP}{'line':>{number}}{_GAP}found", "dim"),)
    for finding, line in zip(engine.findings, numbers, strict=True):
        reason = _wrapped(clean(finding.reason), max(width - begin, _MIN_REASON))
        before = f"{'':{status - len(finding.status)}}{_GAP}{finding.check:<{check}}{_GAP}{line:>{number}}{_GAP}"
        first = next(reason, ())
        yield (_INDENT, ""), (finding.status, _STYLES[finding.status]), (before, ""), *first
        for more in reason:
            yield (" " * begin, ""), *more


def _line_number(finding: Finding, engine: Reviewed) -> str:
    """Return the number alone within the engine's own file, with a star in another."""
    if finding.place.line is None:
        return ""
    elsewhere = "" if finding.place.file == engine.place.file else "*"
    return f"{finding.place.line}{elsewhere}"


def _fixes(engine: Reviewed, width: int) -> Iterator[Line]:
    fixed = [finding for finding in engine.findings if finding.status == "fail" and finding.fix]
    if fixed:
        yield (("  Fix", "bold"),)
    for finding in fixed:
        yield from _wrapped(clean(f"   {finding.check}, {finding.place}"), width, "dim")
        for line in finding.fix.splitlines():
            yield ((clean(f"     {line}"), "cyan"),)


def _wrapped(text: str, width: int, style: str = "") -> Iterator[Line]:
    """Yield the text in pieces of at most `width` columns, cut where rich cuts it."""
    ends = [] if len(text) <= width and text.isascii() else divide_line(text, width)
    for start, end in zip([0, *ends], [*ends, None], strict=True):
        yield ((text[start:end].rstrip(), style),)
