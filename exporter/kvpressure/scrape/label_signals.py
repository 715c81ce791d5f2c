"""Signals that stand in labels: of series that stay on the page, those of the one that was written last.

Such series pile up: a server with many adapters has thousands, one for every set of them that ever ran together, and a
new one with every change. So they are no part of a page's layout, which would be learned again each time: only the
newest series and some others are parsed, and the rest costs what finding its time does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from kvpressure.promtext.lines import STEP_LINES, PageError, Steps, parse_line
from kvpressure.runtimes.table import LabelSignals, Table

MOST_SERIES: Final = 256
"""Parsed at most, the last ones on the page: enough to tell more adapters than there are slots."""

SUMMED_FACTOR: Final = 1.5
"""Several API processes add up the times of what each wrote: such a sum is twice as large or more, while unix times of
one server's life differ by far less."""


def label_signals(page: bytes, table: Table) -> Steps[dict[str, float]]:
    """The signals that `page` tells so, of the whole server; what cannot be read is left out."""
    found: dict[str, float] = {}
    for row in table.label_signals:
        plain = row.name.removeprefix(table.prefix)
        # Most pages have no such series, and going over one costs as much as a tenth of reading it.
        for spelling in table.spellings if f"{plain}{{".encode() in page else ():
            name = (spelling + plain).encode()
            lines = yield from _lines(page, name + b"{")
            if lines:
                found.update(_read(row, name, lines))
                break
    return found


def _lines(page: bytes, start: bytes) -> Steps[list[bytes]]:
    lines: list[bytes] = []
    at = 0 if page.startswith(start) else _next(page, start, 0)
    while at is not None:
        end = page.find(b"\n", at)
        lines.append(page[at:end])
        if len(lines) % STEP_LINES == 0:
            yield
        at = _next(page, start, end)
    return lines


def _next(page: bytes, start: bytes, after: int) -> int | None:
    at = page.find(b"\n" + start, after)
    return None if at < 0 else at + 1


def _read(row: LabelSignals, name: bytes, lines: Sequence[bytes]) -> Mapping[str, float]:
    times = [_time(line) for line in lines]
    most = SUMMED_FACTOR * min(filter(None, times), default=0.0)
    newest = max((time for time in times if time < most), default=0.0)
    if newest <= 0:
        return {}
    labels = _labels(name, _head(lines[times.index(newest)]))
    others = (_labels(name, _head(line)) for line in lines[-MOST_SERIES:])
    return {} if labels is None else row.read(labels, [one for one in others if one is not None])


def _head(line: bytes) -> bytes:
    return line[: line.rfind(b"}") + 1]


def _time(line: bytes) -> float:
    """The value of a series; 0 where it is no time."""
    try:
        time = float(line[line.rfind(b"}") + 1 :].split()[0])
    except (ValueError, IndexError):
        return 0.0
    return time if 0 < time < math.inf else 0.0


@lru_cache(maxsize=4 * MOST_SERIES)
def _labels(name: bytes, head: bytes) -> Mapping[str, str] | None:
    """Labels of a series; None where they cannot be parsed."""
    try:
        series = parse_line(head + b" 1", frozenset({name})).series
    except PageError:
        return None
    return None if series is None else dict(series.labels)
