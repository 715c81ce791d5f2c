"""How long requests are, out of a histogram: what its buckets and its sum allow, and no more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvpressure.model.samples import HistogramSample
from kvpressure.signals.traffic import closed

_CLEAR_OF_BOUNDS: Final = 0.02
INSIDE_DEVIATION: Final = 0.06
"""Of the mean of a bucket between two others, as a share of its width."""
EDGE_DEVIATION: Final = 0.5
"""The same, of the first or the last bucket, as a share of how far it is filled at the density beside it."""
UNKNOWN_DEVIATION: Final = 0.29
"""Of what may be anywhere between two bounds."""
ITERATIONS: Final = 50


@dataclass(frozen=True, slots=True)
class Bucket:
    """A share of the requests, and between which lengths they are believed to lie; `low` and `high` are its bounds."""

    share: float
    low: float
    high: float
    first: float
    last: float

    @property
    def text(self) -> str:
        """Return the bucket in words."""
        return f"{self.share:.0%} of the prompts ({self.low:,.0f} to {self.high:,.0f} tokens)"


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Token lengths of requests; buckets in rising order, shares add up to 1."""

    buckets: tuple[Bucket, ...]

    @property
    def mean(self) -> float:
        """Mean tokens."""
        return sum(bucket.share * (bucket.first + bucket.last) / 2 for bucket in self.buckets)

    @property
    def longest(self) -> float:
        """No request is longer."""
        return self.buckets[-1].high

    def at(self, share: float) -> int:
        """Return the length that a share 0..1 of the requests does not exceed."""
        below = 0.0
        for bucket in self.buckets:
            if share <= below + bucket.share or bucket is self.buckets[-1]:
                inside = min(1.0, max(0.0, (share - below) / bucket.share))
                return max(1, round(bucket.first + (bucket.last - bucket.first) * inside))
            below += bucket.share
        return 1

    def around(self, tokens: float) -> Bucket | None:
        """Return the bucket that `tokens` cuts; None where it lies on a bound, or outside of all."""
        return next((bucket for bucket in self.buckets if bucket.low < tokens < bucket.high), None)

    def above(self, tokens: float) -> tuple[float, float]:
        """Return what share is longer, least and most: a bucket that `tokens` cuts may lie on either side whole."""
        sure = sum(bucket.share for bucket in self.buckets if bucket.low >= tokens)
        return sure, sum(bucket.share for bucket in self.buckets if bucket.high > tokens)


def lengths(
    histogram: HistogramSample, longest: int | None, *, spread: float = 1.0, tail: float = 0.0, even: bool = False
) -> LengthDistribution | None:
    """Return the length distribution of a histogram of tokens; None for an empty one.

    Where in their buckets lengths lie follows from the counts beside them and from their sum, which stays: they lie as
    widely around the mean of each as the bucket allows times `spread` (0: all at one point). `tail` is by how many
    standard deviations more than likeliest the longest are long, while the others are shorter for it. `even` puts the
    means at the same height in all buckets instead, which is how sessions are calibrated.
    """
    ended = closed(histogram, longest)
    weights = [after - before for before, after in zip((0.0, *ended.counts), ended.counts, strict=False)]
    lows = (0.0, *ended.bounds)
    rows = [(max(0.0, w), low, high) for w, low, high in zip(weights, lows, ended.bounds, strict=False)]
    rows = [(w, low, high if math.isfinite(high) else 2 * low) for w, low, high in rows]
    rows = [(w, low, high) for w, low, high in rows if high > low]
    total = sum(w for w, _, _ in rows)
    if total <= 0:
        return None
    filled = [place for place, (w, _, _) in enumerate(rows) if w]
    first = [_height(rows, place) for place in filled]
    rows = [rows[place] for place in filled]
    reach = [w * (high - low) for w, low, high in rows]
    left = ended.sum - sum(w * low for w, low, _ in rows)
    heights = [_inside(left / sum(reach))] * len(rows) if even else _with_sum(first, reach, left)
    if tail:
        top = _inside(heights[-1] + tail * _deviation(first, reach))
        rest = _with_sum(first[:-1], reach[:-1], left - reach[-1] * top)
        # The others can be shorter, or longer, only as far as their buckets allow.
        top = (left - sum(height * each for height, each in zip(rest, reach, strict=False))) / reach[-1]
        heights = [*rest, _inside(top)]
    return LengthDistribution(
        tuple(
            Bucket(w / total, low, high, low + (height - half) * (high - low), low + (height + half) * (high - low))
            for (w, low, high), height in zip(rows, heights, strict=True)
            for half in (spread * min(height, 1.0 - height),)
        )
    )


def _inside(height: float) -> float:
    return min(1.0 - _CLEAR_OF_BOUNDS, max(_CLEAR_OF_BOUNDS, height))


class _Height(NamedTuple):
    """Where the mean of a bucket lies between its bounds (0 to 1), by the counts alone; and its deviation."""

    value: float
    deviation: float


def _height(rows: Sequence[tuple[float, float, float]], place: int) -> _Height:
    """Return the mean of a bucket by the density (requests for each token of length) beside it.

    A bucket with none beyond it is filled only as far as its requests reach at the density before it.
    """
    before, own, after = (
        rows[at][0] / (rows[at][2] - rows[at][1]) if 0 <= at < len(rows) else 0.0
        for at in (place - 1, place, place + 1)
    )
    if before and after:
        low, high = math.sqrt(before * own), math.sqrt(own * after)
        return _Height((low + 2 * high) / (3 * (low + high)), INSIDE_DEVIATION)
    if not (before or after):
        return _Height(0.5, UNKNOWN_DEVIATION)
    ratio = own / (before or after)
    filled = min(1.0, ratio) / 2
    # More lengths than beside it come from elsewhere, and how long those are is not known.
    deviation = EDGE_DEVIATION * filled + INSIDE_DEVIATION / 2 if ratio <= 1 else UNKNOWN_DEVIATION
    return _Height(filled if before else 1.0 - filled, deviation)


def _with_sum(heights: Sequence[_Height], reach: Sequence[float], total: float) -> list[float]:
    """Return the likeliest heights whose sum, each times what its bucket reaches, is `total`, as far as they go."""

    def moved(by: float) -> list[float]:
        return [
            _inside(height.value + by * height.deviation**2 * each / most)
            for height, each in zip(heights, reach, strict=True)
        ]

    most = max(reach, default=1.0)
    high = max((most / (one.deviation**2 * each) for one, each in zip(heights, reach, strict=True)), default=0.0)
    low = -high
    for _ in range(ITERATIONS):
        middle = (low + high) / 2
        if sum(height * each for height, each in zip(moved(middle), reach, strict=True)) < total:
            low = middle
        else:
            high = middle
    return moved((low + high) / 2)


def _deviation(heights: Sequence[_Height], reach: Sequence[float]) -> float:
    """Return the deviation of the last height that is left where the sum is known."""
    whole = sum((height.deviation * each) ** 2 for height, each in zip(heights, reach, strict=True))
    own = heights[-1].deviation
    return own * math.sqrt(max(0.0, 1 - (own * reach[-1]) ** 2 / whole))
