"""Parses the pages of one target to `EnginePage`s."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Final

from kvpressure.engines.plan import Plan
from kvpressure.engines.planner import make_plan, recognised
from kvpressure.model.samples import NOT_READ_REASON, EnginePage
from kvpressure.promtext.lines import (
    STEP_LINES,
    PageError,
    Series,
    Steps,
    WithoutMetricsError,
    in_one_go,
    parse_line,
    require_end,
)
from kvpressure.promtext.scanner import Memory, PageScanner
from kvpressure.runtimes.gateways import OTHER_NAMES, WORKER_NAMES, known_gateway
from kvpressure.runtimes.not_read import METRICS as NOT_READ
from kvpressure.runtimes.not_read import server_not_read
from kvpressure.runtimes.registry import TABLES, named
from kvpressure.runtimes.table import LabelSignals, Table

MAX_SERIES: Final = 256
"""Parsed at most, the last on the page: enough to find more adapters than slots."""

SUMMED_FACTOR: Final = 1.5
"""Several API processes add up the unix times that each wrote: a sum is at least twice the time of one, while times of
one server differ by far less."""


def label_signals(page: bytes, table: Table) -> Steps[dict[str, float]]:
    """Return the signals that are values of labels, from the series written last.

    Such series accumulate: a server with many adapters has thousands, one for every set that ever ran together. So they
    are not part of a page's layout, which would change with each: only the newest and some others are parsed. What
    cannot be parsed is left out.
    """
    signals: dict[str, float] = {}
    for row in table.label_signals:
        plain = row.name.removeprefix(table.prefix)
        # Most pages have no such series: searching one costs a tenth of parsing it, from its end half of that.
        for spelling in table.spellings if page.rfind(f"{plain}{{".encode()) >= 0 else ():
            name = (spelling + plain).encode()
            lines = yield from _lines(page, name + b"{")
            if lines:
                signals.update(_read(row, name, lines))
                break
    return signals


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
    others = (_labels(name, _head(line)) for line in lines[-MAX_SERIES:])
    return {} if labels is None else row.read(labels, [labels_of for labels_of in others if labels_of is not None])


def _head(line: bytes) -> bytes:
    return line[: line.rfind(b"}") + 1]


def _time(line: bytes) -> float:
    """Return the value of a series, 0 where it is not a time."""
    try:
        time = float(line[line.rfind(b"}") + 1 :].split()[0])
    except (ValueError, IndexError):
        return 0.0
    return time if 0 < time < math.inf else 0.0


@lru_cache(maxsize=4 * MAX_SERIES)
def _labels(name: bytes, head: bytes) -> Mapping[str, str] | None:
    """Return the labels of a series, None where they cannot be parsed."""
    try:
        series = parse_line(head + b" 1", frozenset({name})).series
    except PageError:
        return None
    return None if series is None else dict(series.labels)


__all__ = ["PageError", "PageReader"]

# A page of metrics starts with a comment or a sample; HTML, JSON and plain error texts do not.
_METRICS = re.compile(rb"\s*+(?:#\s|[a-zA-Z_:][a-zA-Z0-9_:]*+(?:\{|[ \t]++[-+.0-9]))")

_OLD_TRTLLM = b"\ntime_to_first_token_seconds_count{"

_OURS = b"\n# TYPE kvpressure_"


@cache
def _names(tables: tuple[Table, ...]) -> frozenset[bytes]:
    """Return the names of all `tables`, and those that identify other pages, one set for all readers."""
    return OTHER_NAMES.union(WORKER_NAMES, NOT_READ, *(table.wanted() for table in tables))


class GatewayPageError(PageError, reason="gateway"):
    """It is of a gateway in front of engines."""


class NotReadError(PageError, reason=NOT_READ_REASON):
    """It is of a server that is recognised and not read."""


def _plan(tables: tuple[Table, ...], series: Sequence[Series]) -> Plan | None:
    """Return the plan of the table that has most of the names.

    Raises PageError where they are a gateway's, or of a server that is recognised and not read.
    """
    if gateway := known_gateway(series):
        raise GatewayPageError(
            f"these are the metrics of {gateway}, not of an engine: name the engines behind it as targets"
        )
    plan = make_plan(max(tables, key=lambda table: recognised(table, series)), series)
    if plan is None and (server := server_not_read(series)):
        raise NotReadError(f"not read: these are the metrics of {server}, of which no verdict is made")
    return plan


def _without_engine(page: bytes, tables: Sequence[Table]) -> str:
    """Return why a page without a series of any engine may be so."""
    titles = [named(table.runtime).title for table in tables]
    for title, table in zip(titles, tables, strict=True):
        if any(f"# TYPE {spelling}".encode() in page for spelling in table.spellings):
            return f"the page names metrics of {title} and has no value of any: are its statistics on?"
    if _OLD_TRTLLM in page:
        return (
            "these look like metrics of an older trtllm-serve without its prefix: those of the engine are at "
            "/prometheus/metrics, with return_perf_metrics and enable_iter_perf_stats in the file of --config"
        )
    names = " or ".join(titles)
    return f"no metric of {names} in {len(page)} bytes; is this the engine's own /metrics, and not a gateway's?"


class PageReader:
    """Parses successive pages of one target, full or filtered by name, and keeps their layouts.

    It has no clock and does no I/O. Each target has its own; all targets of a process share a `memory`.
    """

    def __init__(self, tables: Sequence[Table] = TABLES, memory: Memory | None = None) -> None:
        self._tables = tuple(tables)
        self._scanner: PageScanner[Plan | None] = PageScanner(
            _names(self._tables), partial(_plan, self._tables), memory
        )

    def read(self, page: bytes, t: float) -> EnginePage:
        """Return the engines on `page`, which was received at `t` (unix seconds).

        Signals without metrics on the page are absent. A page with a runtime's names and no engine's series has no
        engines. Raises PageError: WithoutMetricsError where it has no name of a runtime, as multi-process servers
        answer `name[]`.
        """
        return in_one_go(self.steps(page, t))

    def steps(self, page: bytes, t: float) -> Steps[EnginePage]:
        """Do the same step by step, for long pages; one page at a time."""
        if _METRICS.match(page):
            require_end(page)
        plan, values = yield from self._scanner.steps(page)
        if plan is None:
            if _OURS in page:
                raise WithoutMetricsError("these are kvpressure's own metrics: its /targets has the engines' URLs")
            raise WithoutMetricsError(_without_engine(page, self._tables))
        read = plan.read(values, t)
        gauges = yield from label_signals(page, next(table for table in self._tables if table.runtime == plan.runtime))
        if not gauges:
            return read
        return replace(
            read, engines=tuple(replace(engine, gauges={**engine.gauges, **gauges}) for engine in read.engines)
        )
