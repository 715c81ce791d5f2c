"""An audit as lines of plain text: what `audit_report` makes of it where there is no terminal, a hundred times as fast.

rich measures and wraps every cell of every table several times; the tables of an audit need that of their last column
alone. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich._wrap import divide_line

from kvpressure.audit.model import Report, Reviewed
from kvpressure.cli.audit_report import counts, fix_lines, heading, line_of, places_elsewhere
from kvpressure.printable import clean

_HEAD: Final = ("status", "check", "line", "found")
_INDENT: Final = "  "
_GAP: Final = "  "


def lines(result: Report, width: int) -> Iterator[str]:
    """Every engine with its checks in their order, and the counts; lines to paste may be longer than `width`."""
    for engine in result.engines:
        yield from _wrapped(heading(engine), width)
        yield from _table(engine, width - len(_INDENT))
        for place in places_elsewhere(engine):
            yield from _wrapped(place, width)
        for text, pasted in fix_lines(engine):
            yield from [text.rstrip()] if pasted else _wrapped(text, width)
        yield ""
    yield from _wrapped(counts(result), width)


def _table(engine: Reviewed, width: int) -> Iterator[str]:
    rows = [_HEAD] + [(one.status, one.check, line_of(one, engine), clean(one.reason)) for one in engine.findings]
    status, check, line = (max(len(row[column]) for row in rows) for column in range(3))
    left = width - status - check - line - 3 * len(_GAP)
    for row in rows:
        begun = f"{_INDENT}{row[0]:<{status}}{_GAP}{row[1]:<{check}}{_GAP}{row[2]:>{line}}{_GAP}"
        first, *more = _wrapped(row[3], left) or [""]
        yield (begun + first).rstrip()
        yield from (" " * len(begun) + one for one in more)


def _wrapped(text: str, width: int) -> Sequence[str]:
    """The text in pieces of at most `width` columns, cut where rich cuts it."""
    if len(text) <= width and text.isascii():
        return [text.rstrip()]
    ends = divide_line(text, width)
    return [text[start:end].rstrip() for start, end in zip([0, *ends], [*ends, None], strict=True)]
