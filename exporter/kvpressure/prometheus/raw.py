"""Samples as they were scraped, put together to the pages that they came from, which the runtime's table reads.

Pure but for the queries. Prometheus gives all samples of one scrape the same time.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from kvpressure.engines.plan import Plan
from kvpressure.engines.planner import make_plan
from kvpressure.engines.reader import label_signals
from kvpressure.model.samples import EnginePage
from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.names import REPLICA_LABELS, Target, all_names, label_names, one_of, quoted
from kvpressure.prometheus.paging import Series as Answer
from kvpressure.prometheus.paging import Span, in_pages, pages
from kvpressure.promtext.lines import Series, in_one_go
from kvpressure.runtimes.table import Table

PAGE_SECONDS: Final = 3600.0
SHORTEST_PAGE_SECONDS: Final = 300.0
SAME_SCRAPE_SECONDS: Final = 1.0
"""Samples of one scrape that went through another system may differ by milliseconds."""

Columns = dict[Series, dict[float, float]]
"""Values by time of each series."""

_EARLY_RATIO: Final = 0.9
"""Of a step: a scrape that comes so early is still the next."""


class PageMaker:
    """Puts pages of one target together; keeps the plans for its sets of series."""

    def __init__(self, table: Table, target: Target, step: float) -> None:
        self._table, self._step = table, step
        self._dropped = {name for name, _ in target.labels} | set(REPLICA_LABELS) | {"__name__"}
        self._plans: dict[tuple[Series, ...], Plan | None] = {}
        self._label_names = label_names(table)

    def pages(self, answer: Answer) -> Iterator[EnginePage]:
        """Yield the pages of a response, oldest first, at most one a step."""
        copies = [self._columns(copy) for copy in _copies(answer)]
        chosen = _filled([_all_times(copy) for copy in copies])
        for t in _times(chosen, self._step):
            present = {row: values[t] for row, values in copies[chosen[t]].items() if t in values}
            labelled = {row: present.pop(row) for row in list(present) if row.name in self._label_names}
            series = tuple(present)
            if series not in self._plans:
                self._plans[series] = make_plan(self._table, series)
            if (plan := self._plans[series]) is not None:
                yield self._with_labels(plan.read(list(present.values()), t), labelled)

    def _columns(self, answer: Answer) -> Columns:
        columns = Columns()
        for row in answer:
            metric: Mapping[str, str] = row.get("metric", {})
            own = tuple(sorted(pair for pair in metric.items() if pair[0] not in self._dropped))
            series, values = Series(metric.get("__name__", ""), own), dict(row.get("values", ()))
            if len(values) > len(columns.get(series, ())) or series not in columns:
                columns[series] = values
        return _on_one_clock(columns)

    def _with_labels(self, page: EnginePage, labelled: Mapping[Series, float]) -> EnginePage:
        """Return the page with what the labels of some of its series say."""
        lines = [
            f"{name}{{{','.join(f'{key}={quoted(text)}' for key, text in labels)}}} {value!r}\n"
            for (name, labels), value in labelled.items()
        ]
        gauges = in_one_go(label_signals("".join(lines).encode(), self._table)) if lines else {}
        if not gauges:
            return page
        return replace(
            page, engines=tuple(replace(sample, gauges={**sample.gauges, **gauges}) for sample in page.engines)
        )


def read_pages(
    server: Prometheus, target: Target, maker: PageMaker, table: Table, span: Span, lacks: Sequence[str] = ()
) -> Iterator[EnginePage]:
    """Yield the pages of a stretch, oldest first, of series without the labels that the target `lacks`.

    Raises PrometheusError.
    """
    labels = (f"{name}={quoted(value)}" for name, value in (*target.labels, *((name, "") for name in lacks)))
    selector = "{" + ", ".join((one_of(all_names([table])), *labels)) + "}"

    def query(piece: Span) -> Answer:
        return server.raw(selector, piece.end, piece.seconds)

    last = float("-inf")
    for page in pages(span, 1.0, PAGE_SECONDS):
        for answer in in_pages(page, 1.0, SHORTEST_PAGE_SECONDS, query):
            for engine_page in maker.pages(answer):
                # A sample on the border of two pieces is in both; a server may add samples outside of the range.
                if (
                    last + SAME_SCRAPE_SECONDS < engine_page.t <= page.end + SAME_SCRAPE_SECONDS
                    and engine_page.t >= page.start
                ):
                    last = engine_page.t
                    yield engine_page


def interval_of(times: Sequence[float]) -> float | None:
    """Return the usual seconds between two scrapes; None for fewer than three."""
    return median(after - before for before, after in itertools.pairwise(times)) if len(times) >= 3 else None


def _copies(answer: Answer) -> list[Answer]:
    """Return the series by the Prometheus replica that scraped them, the one with most samples first.

    Each scrapes at times of its own, so a page is of one of them.
    """
    by_labels: dict[tuple[str, ...], Answer] = {}
    for row in answer:
        replica = tuple(row.get("metric", {}).get(name, "") for name in REPLICA_LABELS)
        by_labels.setdefault(replica, []).append(row)
    return sorted(by_labels.values(), key=lambda copy: -sum(len(row.get("values", ())) for row in copy))


def _filled(copies: Sequence[Sequence[float]]) -> dict[float, int]:
    """Return the times of the first copy, and those of the others where it has none, with the place of their copy."""
    chosen: dict[float, int] = {}
    taken: list[float] = []
    for place, times in enumerate(copies):
        apart = _EARLY_RATIO * (interval_of(times) or 0.0)
        fresh = []
        for t in times:
            after = bisect.bisect_left(taken, t)
            if all(abs(t - other) >= apart for other in taken[max(0, after - 1) : after + 1]):
                fresh.append(t)
        chosen.update(dict.fromkeys(fresh, place))
        taken = sorted((*taken, *fresh))
    return chosen


def _times(times: Iterable[float], step: float) -> list[float]:
    """Return times of scrapes, oldest first, thinned to one a step."""
    kept: list[float] = []
    for t in sorted(times):
        if not kept or t - kept[-1] >= _EARLY_RATIO * step:
            kept.append(t)
    return kept


def _all_times(columns: Columns) -> list[float]:
    return sorted(set(itertools.chain.from_iterable(columns.values())))


def _on_one_clock(columns: Columns) -> Columns:
    """Return the same with samples of one scrape at the same time."""
    moved: dict[float, float] = {}
    first = float("-inf")
    for t in _all_times(columns):
        if t - first > SAME_SCRAPE_SECONDS:
            first = t
        elif t != first:
            moved[t] = first
    if not moved:
        return columns
    return {series: {moved.get(t, t): value for t, value in values.items()} for series, values in columns.items()}
