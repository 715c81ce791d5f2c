"""Cumulative histograms as prometheus_client keeps them, and vLLM's bucket bounds (read from recorded 0.32 pages)."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate

ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PARAMS_N = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
TTFT_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


def one_two_five(limit: int) -> tuple[float, ...]:
    """Bounds of token counts: 1, 2, 5, 10, … up to and including `limit` (vLLM takes `max_model_len`)."""
    bounds = (mantissa * 10.0**exponent for exponent in range(10) for mantissa in (1, 2, 5))
    return tuple(bound for bound in bounds if bound <= limit)


class Histogram:
    """Observations since the server started; `bounds` ascend and end in +Inf."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = (*map(float, bounds), math.inf)
        self.counts = [0] * len(self.bounds)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `times` observations of the same value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Observations at or below each bound."""
        return list(accumulate(self.counts))
