"""Pages of one target to `EnginePage`s: what the engine source uses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

from kvpressure.model.samples import EnginePage
from kvpressure.promtext.lines import PageError, Series, Steps, in_one_go
from kvpressure.promtext.memory import Memory
from kvpressure.promtext.scanner import PageScanner
from kvpressure.runtimes.registry import TABLES
from kvpressure.runtimes.table import Table
from kvpressure.scrape.label_signals import label_signals
from kvpressure.scrape.planner import make_plan, recognised
from kvpressure.scrape.reading_plan import Plan

__all__ = ["PageError", "PageReader"]

# How a page of metrics starts: with a comment, or with a sample. HTML, JSON and plain error texts do not.
_METRICS = re.compile(rb"\s*+(?:#\s|[a-zA-Z_:][a-zA-Z0-9_:]*+(?:\{|[ \t]++[-+.0-9]))")


@cache
def _wanted(tables: tuple[Table, ...]) -> frozenset[bytes]:
    """The names of all `tables`, one set for all readers."""
    return frozenset[bytes]().union(*(table.wanted() for table in tables))


def _plan(tables: tuple[Table, ...], series: Sequence[Series]) -> Plan | None:
    """The plan of the table that knows most of the names."""
    return make_plan(max(tables, key=lambda table: recognised(table, series)), series)


class PageReader:
    """Reads successive pages of one target, full or filtered by name, and remembers their layout.

    It has no clock and does no I/O. Targets must not share one, but those of one process share a `memory`.
    """

    def __init__(self, tables: Sequence[Table] = TABLES, memory: Memory | None = None) -> None:
        self._tables = tuple(tables)
        self._scanner: PageScanner[Plan | None] = PageScanner(
            _wanted(self._tables), partial(_plan, self._tables), memory
        )

    def read(self, page: bytes, t: float) -> EnginePage:
        """The engines on `page`, which was fetched at `t` (unix seconds).

        Signals whose metrics the page does not carry are absent. A page that knows a runtime's names but says
        nothing of an engine yet has no engines. Raises PageError with reason "not_metrics" (none of a runtime's
        names, as multi-process servers answer `name[]`), "truncated" (no newline at the end: a cut number is a
        smaller number), "malformed" or "too_large".
        """
        return in_one_go(self.steps(page, t))

    def steps(self, page: bytes, t: float) -> Steps[EnginePage]:
        """The same step by step, for pages that would hold up others; one page at a time."""
        if not page.endswith(b"\n") and _METRICS.match(page):
            raise PageError("truncated", f"the page breaks off in its last line, after {len(page)} bytes")
        plan, values = yield from self._scanner.steps(page)
        if plan is None:
            names = " or ".join(table.runtime for table in self._tables)
            text = f"no metric of {names} in {len(page)} bytes; is this the engine's own /metrics and no gateway's?"
            raise PageError("not_metrics", text)
        read = plan.read(values, t)
        told = yield from label_signals(page, next(table for table in self._tables if table.runtime == plan.runtime))
        if not told:
            return read
        return replace(read, engines=tuple(replace(one, gauges={**one.gauges, **told}) for one in read.engines))
