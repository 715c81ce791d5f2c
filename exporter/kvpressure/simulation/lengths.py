"""How long requests are, out of a histogram: what its buckets and its sum allow, and no more."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from kvpressure.model.samples import HistogramSample
from kvpressure.signals.traffic import closed

_CLEAR_OF_BOUNDS = 0.02


@dataclass(frozen=True, slots=True)
class Bucket:
    """A share of the requests, and between which lengths they are believed to lie; `low` and `high` are its bounds."""

    share: float
    low: float
    high: float
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Token lengths of requests; buckets in rising order, shares add up to 1."""

    buckets: tuple[Bucket, ...]

    @property
    def mean(self) -> float:
        """Mean tokens."""
        return sum(one.share * (one.first + one.last) / 2 for one in self.buckets)

    @property
    def longest(self) -> float:
        """No request is longer."""
        return self.buckets[-1].high

    def at(self, share: float) -> int:
        """Return the length that a share 0..1 of the requests does not exceed."""
        below = 0.0
        for one in self.buckets:
            if share <= below + one.share or one is self.buckets[-1]:
                inside = min(1.0, max(0.0, (share - below) / one.share))
                return max(1, round(one.first + (one.last - one.first) * inside))
            below += one.share
        return 1

    def draw(self, rng: random.Random) -> int:
        """One length."""
        return self.at(rng.random())

    def above(self, tokens: float) -> tuple[float, float]:
        """At least and at most what share is longer: a bucket that `tokens` cuts may lie on either side whole."""
        sure = sum(one.share for one in self.buckets if one.low >= tokens)
        return sure, sum(one.share for one in self.buckets if one.high > tokens)


def lengths(histogram: HistogramSample, longest: int | None, *, spread: float = 1.0) -> LengthDistribution | None:
    """Return the length distribution of a histogram of tokens; None for an empty one.

    Where in their bucket lengths lie is told by their sum alone: it is taken to be at the same height in each, as
    widely around that as the bucket allows times `spread` (0: all at one point).
    """
    ended = closed(histogram, longest)
    weights = [after - before for before, after in zip((0.0, *ended.counts), ended.counts, strict=False)]
    lows = (0.0, *ended.bounds)
    rows = [(w, low, high) for w, low, high in zip(weights, lows, ended.bounds, strict=False) if w > 0]
    rows = [(w, low, high if math.isfinite(high) else 2 * low) for w, low, high in rows]
    total = sum(w for w, _, _ in rows)
    if total <= 0:
        return None
    floor, span = sum(w * low for w, low, _ in rows), sum(w * (high - low) for w, low, high in rows)
    height = (ended.sum - floor) / span if span > 0 else 0.5
    height = min(1.0 - _CLEAR_OF_BOUNDS, max(_CLEAR_OF_BOUNDS, height))
    half = spread * min(height, 1.0 - height)
    return LengthDistribution(
        tuple(
            Bucket(w / total, low, high, low + (height - half) * (high - low), low + (height + half) * (high - low))
            for w, low, high in rows
        )
    )
