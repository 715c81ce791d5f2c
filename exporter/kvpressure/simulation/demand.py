"""The load of an engine, out of its page: lengths of requests, clients that wait or a rate."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kvpressure.model.view import Interval
from kvpressure.simulation.arrivals import WINDOW_SECONDS, Arrivals, growing_seconds
from kvpressure.simulation.lengths import LengthDistribution
from kvpressure.simulation.page import Page, counted, mean_of, present_in, sum_of
from kvpressure.simulation.server import OPEN_SECONDS, Demand, RequestShape

DRAWN_REQUESTS: Final = 512
KIND_RATIO: Final = 0.05
"""Of the requests below a gap between lengths, and of the tokens above it, from which on they are two kinds."""
MAX_DISPERSION: Final = 10.0
MAX_GROWING_ARRIVALS: Final = 8_000
"""Of a queue that grows; where more came, a shorter time of its growth is simulated."""
FEW_ENDED: Final = 3.0
"""Ended requests stand for all, where they are so many times as many as those under way."""
LONG_FACTOR: Final = 1.3
"""Requests under way that are so many times as long as those that ended are others."""
LEAST_BEGUN_SECONDS: Final = 20.0
BEGUN_STAYS: Final = 3.0
"""Times as long as a request runs, after which a server is full whose queue grows."""
OPEN_STAYS: Final = 20.0
"""The same, that are simulated at least of requests at a rate."""
GROWTH_SHARE: Final = 0.75


def demand_of(page: Page, cached: float, alike: float, arrivals: Arrivals | None = None) -> Demand:
    """Return the load: clients that wait for their answers where `arrivals` do not say otherwise, a rate, or both.

    A queue that grows is simulated from its begin, and counted as of now.
    """
    made = requests(page.prompts, page.outputs, cached, alike)
    made += _under_way(page, cached)
    made.sort(key=lambda shape: shape.prompt)
    clients = max(1, round(statistics.median(map(present_in, page.intervals))))
    mixed = not _two_kinds(page.prompts)
    if arrivals is None or not arrivals.open_per_second:
        return Demand(tuple(made), clients=clients, mixed=mixed)
    rate = arrivals.open_per_second
    demand = replace(
        Demand.at_rate(tuple(made), rate, clients=round(arrivals.waiting_ratio * clients)),
        mixed=mixed,
        dispersion=min(MAX_DISPERSION, arrivals.dispersion),
        rate_deviation_ratio=(1 - arrivals.waiting_ratio) * arrivals.rate_deviation_ratio,
    )
    served = (sum_of(page.intervals, "finished") or 0.0) / page.seconds
    stay_seconds = page.running / served if served else WINDOW_SECONDS
    if arrivals.growth_per_second and page.waiting >= 1:
        grown = growing_seconds(arrivals, page.intervals[-1].waiting or page.waiting)
        seconds = max(2 * WINDOW_SECONDS, min(grown, MAX_GROWING_ARRIVALS / rate))
        begun = max(LEAST_BEGUN_SECONDS, BEGUN_STAYS * stay_seconds)
        if not demand.clients and begun + WINDOW_SECONDS < seconds:
            return replace(
                demand, seconds=begun + WINDOW_SECONDS, counted_seconds=WINDOW_SECONDS, grown_seconds=seconds
            )
        return replace(demand, seconds=seconds, counted_seconds=WINDOW_SECONDS)
    demand = replace(demand, seconds=min(OPEN_SECONDS, max(demand.seconds, OPEN_STAYS * stay_seconds)))
    # A queue that neither grows nor ends was there before.
    return demand if page.waiting < page.running else replace(demand, queue=round(page.waiting))


def _two_kinds(prompts: LengthDistribution) -> bool:
    """Return whether a gap between the lengths means two kinds of clients: some requests, and some of all tokens.

    Lengths of one kind are those of every client, and few at the end of a distribution leave gaps by chance.
    """
    short, tokens = 0.0, prompts.mean
    for before, after in itertools.pairwise(prompts.buckets):
        short += before.share
        tokens -= before.share * (before.first + before.last) / 2
        if after.low > before.high and short >= KIND_RATIO and tokens >= KIND_RATIO * prompts.mean:
            return True
    return False


def growth(intervals: Sequence[Interval]) -> float:
    """Return how many more requests run and wait in the last quarter of the intervals than in the first.

    Between the middles of these lies `GROWTH_SHARE` of the time.
    """
    present = [present_in(interval) for interval in counted(intervals)]
    quarter = max(1, len(present) // 4)
    return mean_of(present[-quarter:]) - mean_of(present[:quarter])


def requests(
    prompts: LengthDistribution, outputs: LengthDistribution, cached: float, alike: float
) -> list[RequestShape]:
    """Draw requests of these lengths, in order of prompt length; `alike` and `cached` as of an engine's page."""
    shares = [(place + 0.5) / DRAWN_REQUESTS for place in range(DRAWN_REQUESTS)]
    answers = list(shares)
    if not alike:  # every length as often as it is, whatever its prompt's
        random.Random(1).shuffle(answers)
    return [
        _request_shape(prompts.at(share), outputs.at(other), cached)
        for share, other in zip(shares, answers, strict=True)
    ]


def _request_shape(prompt: int, output: int, cached: float) -> RequestShape:
    return RequestShape(prompt, max(1, round(prompt * (1.0 - cached))), output)


def _under_way(page: Page, cached: float) -> list[RequestShape]:
    """Return running requests that are unlike the finished ones, which alone would not represent them.

    Those that finished are counted in the window: those of the long one were there when others were under way.
    """
    unfinished, ended = page.observed.unfinished, sum_of(page.intervals, "finished")
    if unfinished is None or ended is None or ended >= FEW_ENDED * unfinished.requests:
        return []
    long_prompts = unfinished.prompt_tokens > LONG_FACTOR * page.prompts.mean
    long_answers = 2 * unfinished.output_tokens > LONG_FACTOR * page.outputs.mean
    if not (long_prompts or long_answers):
        return []
    output = max(round(page.outputs.mean), round(2 * unfinished.output_tokens))
    share = unfinished.requests / (unfinished.requests + ended)
    count = round(DRAWN_REQUESTS * share / max(0.05, 1.0 - share))
    return [_request_shape(round(unfinished.prompt_tokens), output, cached)] * min(count, 4 * DRAWN_REQUESTS)
