"""What a simulated engine does, in figures with the range of what is not known of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """The likeliest value, and between which ones it lies."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all servers together. `goodput` counts requests a second answered in full and in time.

    `latency_p95` is in seconds, `waiting` requests. `refused_ratio` and `shortened_ratio` are shares of the requests.
    """

    tokens_per_second: Span
    goodput: Span
    latency_p95: Span
    waiting: Span
    refused_ratio: Span
    shortened_ratio: Span
