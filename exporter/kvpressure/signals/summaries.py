"""PURE: what many readings come to: a straight line, weighted quantiles, a cumulative histogram."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence

from kvpressure.model.record import record
from kvpressure.model.samples import HistogramSample


@record
class Line:
    """Least-squares line through points over `seconds`: `slope` per second, `r2` the share of variance explained."""

    slope: float
    r2: float
    seconds: float = 0.0


class Tally:
    """A cumulative histogram that grows by weighted observations; `bounds` without +Inf."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = (*bounds, math.inf)
        self._weights = [0.0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float, weight: float) -> None:
        """Count `value` `weight` times."""
        self._weights[bisect.bisect_left(self._bounds, value)] += weight
        self._sum += value * weight

    def histogram(self) -> HistogramSample:
        """Everything observed so far. Counts are whole, as OpenMetrics has them; a weight may be seconds."""
        counts = tuple(float(math.floor(count)) for count in itertools.accumulate(self._weights))
        return HistogramSample(self._bounds, counts, self._sum)


def weighted_quantiles(pairs: Iterable[tuple[float, float]], qs: Sequence[float]) -> list[float] | None:
    """Quantiles of (value, weight) pairs: the smallest value that at least q of the weight does not exceed."""
    ordered = sorted(pair for pair in pairs if pair[1] > 0)
    if not ordered:
        return None
    total = math.fsum(weight for _, weight in ordered)
    result, seen, position = [], 0.0, -1
    for q in sorted(qs):
        while position < len(ordered) - 1 and (position < 0 or seen < q * total):
            position += 1
            seen += ordered[position][1]
        result.append(ordered[position][0])
    return result


def line(points: Sequence[tuple[float, float]]) -> Line | None:
    """Least-squares line through (seconds, value) points; None with fewer than three or all at one time."""
    if len(points) < 3:
        return None
    n = float(len(points))
    t0, v0 = points[0]
    st = sv = stt = stv = svv = 0.0
    for at, value in points:
        t, v = at - t0, value - v0
        st, sv, stt, stv, svv = st + t, sv + v, stt + t * t, stv + t * v, svv + v * v
    tt, tv, vv = stt - st * st / n, stv - st * sv / n, svv - sv * sv / n
    if tt <= 0:
        return None
    return Line(tv / tt, min(1.0, tv * tv / (tt * vv)) if vv > 0 else 0.0, points[-1][0] - t0)
