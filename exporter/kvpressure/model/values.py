"""Values of metric families, nested by label, and how to read them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from kvpressure.model.samples import HistogramSample

QUANTILES = (0.5, 0.95, 0.99)
_LABELS: Final = {q: str(q) for q in QUANTILES}

Value: TypeAlias = float | HistogramSample | Mapping[str, "Value"]
"""One family's value: a number, a histogram, or one of these per label value, nested in the order of its labels."""

Derived: TypeAlias = dict[str, Value]
"""Family name without the `kvpressure_` prefix to value; a family whose input is unknown has no key."""


_NUMBERS: Final = (float, int)
_TREE: Final = (dict, Mapping)
"""Dictionaries first: of them a type check is quick."""


def known(values: Mapping[str, Value | None]) -> Derived:
    """Return `values` without the unknown ones, among which are numbers that are not finite."""
    kept: Derived = {}
    value: Any
    for name, value in values.items():
        if value is None:
            continue
        # First what most are: asking for an abstract class is dear.
        if value.__class__ is dict:
            if inner := known(value):
                kept[name] = inner
        elif value.__class__ is float or isinstance(value, _NUMBERS):
            if -math.inf < value < math.inf:
                kept[name] = value
        elif not isinstance(value, _TREE):
            kept[name] = value
        elif inner := known(value):
            kept[name] = inner
    return kept


def by_quantile(values: Sequence[float], quantiles: Sequence[float] = QUANTILES) -> Value:
    """Return a family labelled with `quantile`, by some of `QUANTILES`."""
    return {_LABELS[q]: value for q, value in zip(quantiles, values, strict=True)}


def at(derived: Mapping[str, Value], *path: str) -> float | None:
    """Return the number at `path` (family, then its label values); None where it is not known."""
    value: Any = derived
    for key in path:
        if (value.__class__ is not dict and not isinstance(value, _TREE)) or key not in value:
            return None
        value = value[key]
    return value if value.__class__ is float or isinstance(value, _NUMBERS) else None


def quantile(histogram: HistogramSample, q: float) -> float | None:
    """Return the q-quantile (0..1) by linear interpolation within a bucket, as PromQL's histogram_quantile does it.

    Observations in the +Inf bucket count as the highest finite bound. None for an empty histogram.
    """
    bounds, counts = histogram.bounds, histogram.counts
    total = counts[-1]
    if total <= 0:
        return None
    rank = q * total
    index = bisect_left(counts, rank)
    if bounds[index] == math.inf:
        return bounds[index - 1] if index else None
    low, below = (bounds[index - 1], counts[index - 1]) if index else (min(0.0, bounds[0]), 0.0)
    width = counts[index] - below
    return bounds[index] if width <= 0 else low + (bounds[index] - low) * (rank - below) / width


def ramp(value: float, start: float, end: float) -> float:
    """Return 0 up to `start`, 1 from `end`, linear between; where they are equal, 0 below and 1 from there on."""
    if end <= start:
        return float(value >= end)
    share = (value - start) / (end - start)
    return 0.0 if share <= 0 else 1.0 if share >= 1 else share


def number(value: float) -> str:
    """Return a value as text: whole numbers with thousands separators, others with as many digits as they need.

    >>> number(8160), number(0.7), number(2.25)
    ('8,160', '0.7', '2.25')
    """
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"


def clock(t: float, unknown: str = "not known", *, day: bool = False) -> str:
    """Return a unix time as UTC, with the date when `day` is set; `unknown` for one that no calendar has.

    >>> clock(1767225600.0), clock(1767225600.0, day=True)
    ('00:00:00 UTC', '2026-01-01 00:00:00 UTC')
    """
    try:
        return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S UTC" if day else "%H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return unknown
