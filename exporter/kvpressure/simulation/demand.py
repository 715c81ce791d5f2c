"""The load of an engine, out of its page: lengths of requests, clients that wait for their answers, a rate, or both.

Between two polls as many requests came as ended, and as many as there are more now. A client that waits for its answer
sends the next request when it has it: arrivals follow ends within a second, one for one. Requests at a rate come
whether others end or not. So the slope of arrivals over ends is the share of requests that clients send who wait.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvpressure.model.view import Interval, Observed
from kvpressure.simulation.lengths import LengthDistribution
from kvpressure.simulation.page import Page, counted, mean_of, present_in, sum_of
from kvpressure.simulation.server import OPEN_SECONDS, Demand, RequestShape

LEAST_INTERVALS: Final = 12
LATENCY_FACTOR: Final = 2.0
"""Times the length of an interval that requests stay at least, for arrivals and ends in it to be of different ones."""
STAY_SHARE: Final = 0.25
"""Of the time that requests stay, in which few end of those that came in it, over which is counted at most."""
WINDOW_SHARE: Final = 0.125
"""The same of the window."""
WALK_RATIO: Final = 0.6
"""Of the deviation of arrivals less ends by chance, which the number of requests spans less than where clients wait."""
ALL_RATIO: Final = 0.8
"""A slope from which on all clients wait: some ends and the next requests lie on either side of a poll."""
NONE_RATIO: Final = 0.25
"""A slope up to which none does, as far as a minute shows."""
COVERED_DEVIATIONS: Final = 1.645
KEPT_RATIO: Final = 0.95
"""Of the intervals."""
LEAST_ANSWERED: Final = 8
EXCHANGED_RATIO: Final = 0.65
"""Of the intervals in which requests ended: in so many as many came, where clients wait for their answers."""
STEP_RATIO: Final = 0.4
LOAD_FACTOR: Final = 2.0
"""Of the requests there are, within an interval and on average before and after it: then it is another load."""
BY_CHANCE: Final = (0.4, 2.0)
CONSTANT_DISPERSION: Final = 0.15
GROWS_DEVIATIONS: Final = 2.0
"""Of chance, by which a queue has to have grown for more to arrive than is answered."""
SAME_RATE_DEVIATIONS: Final = 3.0
LONGEST_GROWTH_SECONDS: Final = 1800.0
WINDOW_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests `per_second`, and the share of them that clients send who wait for their answers, 0 to 1.

    `least` and `most` are between what that share lies. `dispersion` is the variance of the number that come in an
    interval over its mean, of those at a rate: 0 at constant spacing, 1 by chance, more in bursts. The queue grows by
    `growth_per_second`, 0 where that may be chance.
    """

    per_second: float
    waiting_ratio: float
    least: float
    most: float
    dispersion: float = 1.0
    growth_per_second: float = 0.0
    counted_seconds: float = math.inf
    """Over which they were counted: of few requests that come by chance the rate is not known well."""

    @property
    def rate_deviation_ratio(self) -> float:
        """Standard deviation of the rate, as a share of it."""
        return math.sqrt(self.dispersion / (self.per_second * self.counted_seconds))

    @property
    def open_per_second(self) -> float:
        """Requests a second that come whether others are answered or not."""
        return (1.0 - self.waiting_ratio) * self.per_second

    @property
    def otherwise(self) -> float | None:
        """The share at the other end of what it may be; None where it is certain."""
        if self.least == self.most:
            return None
        return self.most if self.most - self.waiting_ratio > self.waiting_ratio - self.least else self.least


def arrivals_of(observed: Observed) -> Arrivals | None:
    """Return what arrives, over the window, at a rate over up to five minutes; None where polls do not show it."""
    polls = counted(observed.intervals)
    present = [present_in(interval) for interval in polls]
    ended = [interval.finished or 0.0 for interval in polls[1:]]
    came = [end + after - before for end, (before, after) in zip(ended, itertools.pairwise(present), strict=True)]
    seconds = sum(interval.seconds for interval in polls[1:])
    if len(came) < LEAST_INTERVALS or seconds <= 0 or any(interval.finished is None for interval in polls[1:]):
        return None
    per_second = max(0.0, sum(came) / seconds)
    if not per_second:
        return None
    dispersion = statistics.pvariance(came) / statistics.fmean(came)
    dispersion = 0.0 if dispersion < CONSTANT_DISPERSION else dispersion
    growth = _growth(present, seconds, per_second, dispersion)
    # Of a queue that grows, what the slope leaves of the arrivals comes whether others end or not.
    follows = min(1.0, sum(ended) / sum(came)) if growth else 1.0
    ratio, least, most = (follows * one for one in _slope(came, ended, present, seconds))
    if not growth and ratio >= ALL_RATIO:
        return Arrivals(per_second, 1.0, least if least < ALL_RATIO else 1.0, 1.0)
    rate, growth, counted_seconds = _over_minutes(observed, per_second, seconds, dispersion, growth)
    if growth:  # clients who wait for their answers make no queue grow: some do only where that is sure
        ratio = least = most = ratio if least else 0.0
    elif BY_CHANCE[0] <= dispersion <= BY_CHANCE[1]:  # many clients that think between their requests look the same
        most = 1.0
    return Arrivals(rate, ratio, least, most, dispersion, growth, counted_seconds)


def _slope(
    came: Sequence[float], ended: Sequence[float], present: Sequence[float], seconds: float
) -> tuple[float, float, float]:
    """Return how many requests come for each that ended, 0 to 1, and between what that lies."""
    if max(present) - min(present) <= 1 and any(ended):
        return 1.0, 1.0, 1.0  # as many all the time
    rate = sum(ended) / seconds
    stay = statistics.fmean(present) / rate if rate else math.inf
    if stay < LATENCY_FACTOR * seconds / len(came):
        return 1.0, 0.0, 1.0  # those that came have ended already: the polls show nothing
    answered = [one for one in zip(came, ended, strict=True) if one[1] > 0]
    if len(answered) >= LEAST_ANSWERED and sum(1 for a, b in answered if a == b) >= EXCHANGED_RATIO * len(answered):
        return 1.0, 1.0, 1.0  # all but a few were followed at once by as many; those began or ended their work
    # A client's next request may be on the page after its answer: over several intervals that is at the ends alone.
    size = max(1, int(len(came) * min(STAY_SHARE * stay / seconds, WINDOW_SHARE)))
    if max(present) - min(present) > WALK_RATIO * math.sqrt(sum(came) + sum(ended)):
        size = 1  # their number wanders as where ends and arrivals have nothing to do with each other
    came, ended = _sums(came, size), _sums(ended, size)
    # The most that came at once may be clients that begin.
    fewest = sorted(range(len(came)), key=lambda place: (came[place], ended[place]))[: int(KEPT_RATIO * len(came))]
    came, ended = [came[place] for place in sorted(fewest)], [ended[place] for place in sorted(fewest)]
    mean_came, mean_ended = statistics.fmean(came), statistics.fmean(ended)
    spread = sum((one - mean_ended) ** 2 for one in ended)
    if not spread:
        return 0.0, 0.0, 0.0  # they end at one pace, and come at another
    together = sum((a - mean_came) * (b - mean_ended) for a, b in zip(came, ended, strict=True))
    slope = together / spread
    left = [a - mean_came - slope * (b - mean_ended) for a, b in zip(came, ended, strict=True)]
    rest, alike = sum(one * one for one in left), 0.0
    if size > 1 and rest:  # sums that share their counts say less the more what is left of them is alike too
        follows = sum(one * other for one, other in itertools.pairwise(left)) / rest
        alike = (1 - 1 / size) * min(1.0, max(0.0, follows))
    deviation = math.sqrt((1 + alike) / (1 - alike) * rest / (len(came) - 2) / spread)
    deviation *= COVERED_DEVIATIONS
    least, likeliest, most = (_rounded(value) for value in (slope - deviation, slope, slope + deviation))
    if least == 0.0 or most == 1.0:  # a mixture is told only where it is surely neither
        likeliest = 0.0 if most < 1.0 or (least == 0.0 and slope < 1 / 2) else 1.0
    return likeliest, min(least, likeliest), max(most, likeliest)


def _sums(counts: Sequence[float], size: int) -> list[float]:
    """Return the sum of every so many that follow each other."""
    return [sum(counts[place : place + size]) for place in range(len(counts) - size + 1)]


def _rounded(slope: float) -> float:
    return 0.0 if slope <= NONE_RATIO else 1.0 if slope >= ALL_RATIO else slope


def _growth(present: Sequence[float], seconds: float, rate: float, dispersion: float) -> float:
    """Return how many more requests there are each second, 0 where chance alone makes as many."""
    quarter = max(1, len(present) // 4)
    grown = statistics.fmean(present[-quarter:]) - statistics.fmean(present[:quarter])
    share = 1 - quarter / len(present)
    by_chance = math.sqrt((1 + dispersion) * rate * share * seconds)
    return grown / (share * seconds) if grown > max(2.0, GROWS_DEVIATIONS * by_chance) else 0.0


def _over_minutes(
    observed: Observed, rate: float, seconds: float, dispersion: float, growth: float
) -> tuple[float, float, float]:
    """Return the rate, the growth and the seconds of the longer window, where that is of the same load."""
    long = observed.minutes
    intervals = () if long is None else counted(long.intervals)
    if long is None or len(intervals) < LEAST_INTERVALS:
        return rate, growth, seconds
    present, whole = [present_in(interval) for interval in intervals], sum(interval.seconds for interval in intervals)
    between = whole * (1 - 1 / len(intervals))  # from the middle of the first to that of the last
    usual = sum(interval.finished or 0.0 for interval in intervals) / whole + (present[-1] - present[0]) / between
    if abs(usual - rate) > SAME_RATE_DEVIATIONS * math.sqrt(max(0.1, dispersion) * rate / seconds):
        return rate, growth, seconds
    return usual, _growth(present, whole, usual, dispersion), whole


def growing_seconds(arrivals: Arrivals, waiting: float) -> float:
    """Return for how long the queue has grown, at the growth of now."""
    return min(LONGEST_GROWTH_SECONDS, max(2 * WINDOW_SECONDS, waiting / arrivals.growth_per_second))


def of_present_load(intervals: Sequence[Interval]) -> Sequence[Interval]:
    """Return those since the load changed at once, where it did and enough are left; else all of them."""
    present = [present_in(interval) for interval in intervals]
    for place in range(len(intervals) - LEAST_INTERVALS, LEAST_INTERVALS // 2, -1):
        before, after = statistics.fmean(present[:place]), statistics.fmean(present[place:])
        step = abs(present[place] - present[place - 1])
        if step >= STEP_RATIO * max(before, after) and max(before, after) >= LOAD_FACTOR * min(before, after):
            return intervals[place:]
    return intervals


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
