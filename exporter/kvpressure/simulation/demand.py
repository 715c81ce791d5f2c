"""The load of an engine, out of its page: lengths of requests, clients that wait or a rate."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence
from typing import Final

from kvpressure.model.view import Interval, Observed
from kvpressure.simulation.lengths import LengthDistribution
from kvpressure.simulation.page import mean_of, sum_of
from kvpressure.simulation.server import Demand, RequestShape

DRAWN_REQUESTS: Final = 512
FEW_ENDED: Final = 3.0
"""Ended requests stand for all, where they are so many times as many as those under way."""
LONG_FACTOR: Final = 1.3
"""Requests under way that are so many times as long as those that ended are others."""
GROWTH_RATIO: Final = 0.25
"""A queue that grew by such a share of all requests in the window has clients that do not wait for their answers."""
GROWTH_SHARE: Final = 0.75
MIN_INTERVALS: Final = 12
"""Two minutes of means over ten seconds: chance shows in no fewer."""
OPEN_RATIO: Final = 0.35
"""Of the square by which the mean number of requests changes between intervals, to twice the requests that end in one.

Two thirds where arrivals do not wait for these; in the lab on cards under 0.01 for clients that wait for their answers,
0.1 to 0.3 with think times, 1.4 to 2.1 at a rate.
"""
KEPT_CHANGES_RATIO: Final = 0.9
"""Of the changes: the largest may be the one when load begins."""
KEPT_SQUARE: Final = 0.62
"""The mean square of the smaller nine tenths of a normal variable."""


def demand_of(
    observed: Observed,
    intervals: Sequence[Interval],
    prompts: LengthDistribution,
    outputs: LengthDistribution,
    cached: float,
    alike: float,
    rate: float | None = None,
) -> Demand:
    """Return the load: clients that wait for their answers, or a rate where the queue grows or `rate` is known."""
    made = requests(prompts, outputs, cached, alike)
    made += _under_way(observed, intervals, prompts, outputs, cached)
    made.sort(key=lambda one: one.prompt)
    present, grown = _present(intervals), growth(intervals)
    came = grown + (sum_of(intervals, "finished") or 0.0) * GROWTH_SHARE
    seconds = sum(one.seconds for one in intervals)
    if grown > max(2.0, GROWTH_RATIO * mean_of(present)) and came > 0:
        return Demand.at_rate(tuple(made), came / (GROWTH_SHARE * seconds), queue=round(present[-1]))
    if rate is not None:
        return Demand.at_rate(tuple(made), rate, queue=round(present[-1]))
    # Lengths of one kind are those of every client; a gap between them means two kinds of clients.
    mixed = not any(after.low > before.high for before, after in itertools.pairwise(prompts.buckets))
    return Demand(tuple(made), clients=max(1, round(statistics.median(present))), mixed=mixed)


def arrival_rate(observed: Observed) -> float | None:
    """Return requests a second over the longer window; None for clients that wait for their answers, or too few polls.

    Those that wait are as many all the time. At a rate requests come and go by chance, and with more room they are
    served sooner, not more of them.
    """
    long = observed.minutes
    present = [] if long is None else _present(long.intervals)
    if long is None or len(present) < MIN_INTERVALS:
        return None
    finished = sum_of(long.intervals, "finished") or 0.0
    squares = sorted((after - before) ** 2 for before, after in itertools.pairwise(present))
    square = statistics.fmean(squares[: int(KEPT_CHANGES_RATIO * len(squares))]) / KEPT_SQUARE
    if finished < len(present) or square * len(present) < OPEN_RATIO * 2 * finished:
        return None
    return max(0.0, finished + present[-1] - present[0]) / long.seconds or None


def growth(intervals: Sequence[Interval]) -> float:
    """Return how many more requests run and wait in the last quarter of the intervals than in the first.

    Between the middles of these lies `GROWTH_SHARE` of the time.
    """
    present = _present(intervals)
    quarter = max(1, len(present) // 4)
    return mean_of(present[-quarter:]) - mean_of(present[:quarter])


def _present(intervals: Sequence[Interval]) -> list[float]:
    """Return the mean number of running and waiting requests."""
    return [one.running + one.waiting for one in intervals if one.running is not None and one.waiting is not None]


def requests(
    prompts: LengthDistribution, outputs: LengthDistribution, cached: float, alike: float
) -> list[RequestShape]:
    """Draw requests of these lengths, in order of prompt length; `alike` and `cached` as of an engine's page."""
    rng = random.Random(1)
    shares = [(place + 0.5) / DRAWN_REQUESTS for place in range(DRAWN_REQUESTS)]
    return [
        _request_shape(prompts.at(share), outputs.at(share) if alike else outputs.draw(rng), cached) for share in shares
    ]


def _request_shape(prompt: int, output: int, cached: float) -> RequestShape:
    return RequestShape(prompt, max(1, round(prompt * (1.0 - cached))), output)


def _under_way(
    observed: Observed,
    intervals: Sequence[Interval],
    prompts: LengthDistribution,
    outputs: LengthDistribution,
    cached: float,
) -> list[RequestShape]:
    """Return running requests that are unlike the finished ones, which alone would not represent them.

    Those that finished are counted in the window: those of the long one were there when others were under way.
    """
    one, ended = observed.unfinished, sum_of(intervals, "finished")
    if one is None or ended is None or ended >= FEW_ENDED * one.requests:
        return []
    long_prompts = one.prompt_tokens > LONG_FACTOR * prompts.mean
    long_answers = 2 * one.output_tokens > LONG_FACTOR * outputs.mean
    if not (long_prompts or long_answers):
        return []
    output = max(round(outputs.mean), round(2 * one.output_tokens))
    share = one.requests / (one.requests + ended)
    count = round(DRAWN_REQUESTS * share / max(0.05, 1.0 - share))
    return [_request_shape(round(one.prompt_tokens), output, cached)] * min(count, 4 * DRAWN_REQUESTS)
