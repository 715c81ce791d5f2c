"""PURE: verdicts, numbers, units and times in words for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.verdict import DETAILS, Diagnosis, Stage

STAGES: dict[Stage, str] = {
    Stage.NONE: "",
    Stage.BUILDING: "pressure building",
    Stage.COLLAPSED: "collapsed",
    Stage.FAILING: "failing",
}
NOT_KNOWN = "not known"


def meaning(diagnosis: Diagnosis) -> str:
    """Return the verdict as a sentence: the detail of its cause where there is one, else the cause."""
    told = DETAILS[diagnosis.cause].get(diagnosis.detail)
    return f"{told[:1].upper()}{told[1:]}." if told else CATALOGUE[diagnosis.cause].meaning


@dataclass(frozen=True, slots=True)
class Shown:
    """A number as people read it, and `raw` as a machine does: the same value that the JSON twin carries."""

    text: str
    raw: str = ""
    before: str = ""


def shown(value: float | None, unit: str = "", before: str = "") -> Shown:
    """Return a value in its unit, `before` being a caption; "not known" for None and NaN."""
    if value is None or math.isnan(value):
        return Shown(NOT_KNOWN, "", before)
    return Shown(quantity(value, unit), repr(float(value)), before)


def quantity(value: float, unit: str = "") -> str:
    """Return a value in its unit.

    >>> quantity(0.934, "ratio"), quantity(2.25, "factor"), quantity(0.034, "seconds"), quantity(28.1, "sequences")
    ('93%', '2.2x', '34 ms', '28')
    """
    if math.isinf(value):
        return "-∞" if value < 0 else "∞"
    if unit in _FORMS:
        return _FORMS[unit](value)
    return f"{count(value)} {unit.replace('_', ' ')}"


def percent(value: float) -> str:
    """Return a share in percent; one that is neither 0 nor 1 is not rounded to 0% or 100%.

    >>> percent(0.934), percent(0.9996), percent(0.0004), percent(0.0)
    ('93%', '99%', '1%', '0%')
    """
    return f"{min(max(value, 0.01), 0.99):.0%}" if 0.0 < value < 1.0 else f"{value:.0%}"


def seconds(value: float) -> str:
    """Return a latency in ms or s.

    >>> seconds(0.034), seconds(1.5), seconds(75.0), seconds(0.0)
    ('34 ms', '1.5 s', '75 s', '0 s')
    """
    if 0 < abs(value) < 1:
        return f"{value * 1000:.0f} ms" if value >= 0.01 else f"{value * 1000:.2g} ms"
    return f"{value:.1f} s" if 0 < abs(value) < 10 else f"{value:,.0f} s"


def count(value: float) -> str:
    """Return a number with as many digits as it needs.

    >>> count(12345.6), count(28.12), count(2.96), count(3.0), count(0.004)
    ('12,346', '28', '3.0', '3', '0.004')
    """
    if value == int(value) or abs(value) >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 0.1 else f"{value:.2g}"


def requests(value: float) -> str:
    """Return a mean number of requests.

    >>> requests(0.03), requests(0.0), requests(12.6)
    ('<0.1', '0', '13')
    """
    return "<0.1" if 0 < value < 0.1 else count(value)


def duration(total: float) -> str:
    """Return a length of time in its two largest units.

    >>> duration(42.0), duration(151.0), duration(7300.0), duration(200000.0)
    ('42 s', '2 min 31 s', '2 h 1 min', '2 d 7 h')
    """
    whole = max(0, int(total))
    for size, name, below, below_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // below} {below_name}"
    return f"{whole} s"


def clock(t: float, *, day: bool = False) -> str:
    """Return a unix time as UTC, with the date when `day` is set.

    >>> clock(1767225600.0), clock(1767225600.0, day=True)
    ('00:00:00 UTC', '2026-01-01 00:00:00 UTC')
    """
    try:
        return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S UTC" if day else "%H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return NOT_KNOWN


_FORMS: Mapping[str, Callable[[float], str]] = {
    "": count,
    "sequences": count,
    "requests": requests,
    "ratio": percent,
    "score": "{:.2f}".format,
    "factor": "{:.1f}x".format,
    "seconds": seconds,
    "bytes": lambda value: f"{value / 2**30:,.1f} GiB",
}
