"""A long time in pages, which are halved where the server refuses them as too large."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.prometheus.answers import TooMuchError
from kvpressure.prometheus.client import Prometheus

DAY_SECONDS: Final = 86_400.0
SHORTEST_PAGE_SECONDS: Final = 900.0
MAX_POINTS: Final = 10_000
"""Of one series in one answer; Prometheus refuses more than 11,000."""

Series = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """From `start` to `end`, unix seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


def pages(span: Span, step: float, longest: float) -> Iterator[Span]:
    """Yield adjacent spans of at most `longest` seconds and MAX_POINTS steps."""
    length = max(step, min(longest, MAX_POINTS * step) // step * step)
    start = span.start
    while start < span.end:
        end = min(span.end, start + length)
        yield Span(start, end)
        start = end


def in_pages(span: Span, step: float, shortest: float, query: Callable[[Span], Series]) -> Iterator[Series]:
    """Yield the responses for a span, in order; it is halved where it is too large for the server or this program.

    Raises PrometheusError, and TooMuchError where even `shortest` seconds are too large.
    """
    try:
        rows = query(span)
    except TooMuchError:
        if span.seconds <= max(shortest, 2 * step):
            raise
        middle = span.start + max(1, round(span.seconds / 2 / step)) * step
        for half in (Span(span.start, middle), Span(middle, span.end)):
            yield from in_pages(half, step, shortest, query)
        return
    yield rows


def ranged(
    server: Prometheus, expr: str, span: Span, step: float, shortest: float = SHORTEST_PAGE_SECONDS
) -> Iterator[dict[str, Any]]:
    """Yield the series of a range query, split as `in_pages` does."""
    for series in in_pages(span, step, shortest, lambda part: server.range(expr, part.start, part.end, step)):
        yield from series


def joined(spans: list[Span], gap: float) -> list[Span]:
    """Return the spans in order, joined where they are at most `gap` apart.

    >>> joined([Span(30, 40), Span(0, 10), Span(12, 20)], 5)
    [Span(start=0, end=20), Span(start=30, end=40)]
    """
    merged_spans: list[Span] = []
    for span in sorted(spans):
        if merged_spans and span.start <= merged_spans[-1].end + gap:
            merged_spans[-1] = Span(merged_spans[-1].start, max(merged_spans[-1].end, span.end))
        else:
            merged_spans.append(span)
    return merged_spans
