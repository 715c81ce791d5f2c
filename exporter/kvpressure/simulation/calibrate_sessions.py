"""From what is known of an engine to the sessions that come back to it: how they grow, think, and how many there are.

How many there are is not on the page. By Little's law they are as many as requests come while one thinks
and is answered; and they think for as long as makes the simulated cache find what the engine's own does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.limits import Limits
from kvpressure.model.view import Interval, Observed, PoolHits
from kvpressure.simulation.calibrate import Known, Measured, tokens_deviation_ratio
from kvpressure.simulation.demand import requests
from kvpressure.simulation.hits import best_hit_ratio, measured_hits
from kvpressure.simulation.lengths import LengthDistribution
from kvpressure.simulation.outcome import Outcome
from kvpressure.simulation.page import Page, read, sum_of
from kvpressure.simulation.scheduler import Simulation
from kvpressure.simulation.server import STEP_TOKENS, Demand, Server, StepSeconds
from kvpressure.simulation.sessions import Sessions
from kvpressure.simulation.steps import DRAFTED_RATIO, LEAST_INTERVALS, SHARED_RATIO, UnknownError, computed_in

SURE_DEVIATIONS: Final = 4.0
"""A slope is believed from so many of its standard errors on."""
MAX_SHARE: Final = 0.8
"""Of the time that may be that of prompts, or of sequences."""


class _Row(NamedTuple):
    seconds: float
    steps: float
    generated: float
    computed: float


def step_seconds(
    intervals: Sequence[Interval], prefill: tuple[float, float] | None, *, per_sequence: float | None = None
) -> StepSeconds:
    """Divide the time of the intervals among steps, sequences and prompt tokens, with no prior. Raises UnknownError.

    `steps` leans on a prior of cards, and puts down to the tokens that precede a prompt's what here shows by itself:
    with it, 32 of 39 of the lab's hits were within 0.05 where 35 are (`bench/working_set`).

    `prefill` is the mean time from admission to first token and the tokens computed in it; it says what a prompt's
    token takes where the intervals are too much alike to. `per_sequence` is the share of a step's time that grows with
    the batch, where that is not fitted to the intervals. A step that gives a sequence several tokens counts as several.
    """
    busy = [
        interval for interval in intervals if interval.running and interval.steps and interval.generated is not None
    ]
    if len(busy) < LEAST_INTERVALS:
        raise UnknownError("how long steps take is not known")
    seconds, drafted = sum(interval.seconds for interval in busy), _tokens_each(busy)
    rows = [
        _Row(interval.seconds, (interval.steps or 0.0) * drafted, interval.generated or 0.0, computed_in(interval))
        for interval in busy
    ]
    steps, generated, computed = (sum(values) for values in zip(*(row[1:] for row in rows), strict=True))
    quiet = [row for row, interval in zip(rows, busy, strict=True) if not interval.preempted]
    token = _prompt_token(quiet, prefill, seconds, steps, computed)
    token = min(token, MAX_SHARE * seconds / computed) if computed else token
    left, batch = (seconds - token * computed) / steps, generated / steps
    if not batch:
        return StepSeconds(left, 0.0, token)
    each = _per_sequence(quiet, token) if per_sequence is None else per_sequence * left / batch
    each = min(each, (MAX_SHARE if per_sequence is None else 1.0) * left / batch)
    return StepSeconds(left - each * batch, each, token)


def _tokens_each(busy: Sequence[Interval]) -> float:
    sequences = sum((interval.steps or 0.0) * (interval.running or 0.0) for interval in busy)
    each = sum(interval.generated or 0.0 for interval in busy) / sequences if sequences else 1.0
    return each if each >= DRAFTED_RATIO else 1.0


def _prompt_token(
    rows: Sequence[_Row], prefill: tuple[float, float] | None, seconds: float, steps: float, computed: float
) -> float:
    """Return the seconds of a prompt token: the slope over the intervals where significant, else from prefill times."""
    if len(rows) >= LEAST_INTERVALS and (slope := _slope(rows)) is not None:
        return slope
    if prefill is None:
        return 0.0
    took, own = prefill
    token = 0.0
    # In the steps that computed a prompt others' were computed too; what a step takes by itself depends on the answer.
    for _ in range(4):
        step = max(0.0, (seconds - token * computed) / steps)
        token = max(0.0, took - step) / max(1.0, own + computed / steps)
    return token


def _slope(rows: Sequence[_Row]) -> float | None:
    """Return b of seconds = a x steps + b x computed by least squares, where it is sure to differ from 0."""
    ss, cc = sum(row.steps * row.steps for row in rows), sum(row.computed * row.computed for row in rows)
    sc = sum(row.steps * row.computed for row in rows)
    st, ct = sum(row.steps * row.seconds for row in rows), sum(row.computed * row.seconds for row in rows)
    determinant = ss * cc - sc * sc
    if determinant <= 0:
        return None
    a, b = (st * cc - ct * sc) / determinant, (ct * ss - st * sc) / determinant
    left = sum((row.seconds - a * row.steps - b * row.computed) ** 2 for row in rows)
    error = math.sqrt(left / (len(rows) - 2) * ss / determinant)
    return b if a > 0 and b > SURE_DEVIATIONS * error else None


def _per_sequence(rows: Sequence[_Row], token: float) -> float:
    """Return the seconds a sequence adds to a step: the slope over the batch size, 0 where not significant."""
    known = [row for row in rows if row.generated]
    if len(known) < LEAST_INTERVALS:
        return 0.0
    weight = sum(row.steps for row in known)
    batches = [row.generated / row.steps for row in known]
    times = [(row.seconds - token * row.computed) / row.steps for row in known]
    batch = sum(b * row.steps for b, row in zip(batches, known, strict=True)) / weight
    mean = sum(t * row.steps for t, row in zip(times, known, strict=True)) / weight
    together = sum(row.steps * (b - batch) * (t - mean) for b, t, row in zip(batches, times, known, strict=True))
    spread = sum(row.steps * (b - batch) ** 2 for b, row in zip(batches, known, strict=True))
    if not spread:
        return 0.0
    slope = together / spread
    left = sum(
        row.steps * (t - mean - slope * (b - batch)) ** 2 for b, t, row in zip(batches, times, known, strict=True)
    )
    error = math.sqrt(left / (len(known) - 2) / spread)
    return slope if slope > SURE_DEVIATIONS * error else 0.0


MAX_CLIENTS: Final = 1_000
SHORTEST_SECONDS: Final = 0.1
BISECTIONS: Final = 9
BISECTIONS_AGAIN: Final = 6
AGAIN_FACTOR: Final = 2.0
"""Another fit begins so far around the one before it."""
FITS: Final = 3
CLOSE_ENOUGH: Final = 0.01
"""Of the hits, on average: so far off they are by chance from one run to another."""
FIT_ANSWERS: Final = 600
COARSE_FIT_ANSWERS: Final = 300
"""For an engine that is only set beside the likeliest."""
FITTED_RATIO: Final = 0.03
MAX_SCALE: Final = 2.0
PACE_WEIGHT: Final = 0.1
"""Of a factor e in pace, in hits: by hits alone an engine that stands in a queue may be chosen."""


@dataclass(frozen=True, slots=True)
class Target:
    """Hits to be reproduced, by the size of the cache in tokens; `best` if nothing were evicted."""

    pools: tuple[float, ...]
    hits: tuple[float, ...]
    best: float


@dataclass(frozen=True, slots=True)
class Fit:
    """An engine with sessions, and how far it is from the page."""

    server: Server
    demand: Demand
    simulation: Simulation
    outcome: Outcome
    error: float
    """Root mean square, of hits."""
    pace: float
    """Tokens a second for each request that runs, over those of the engine."""

    @property
    def misfit(self) -> float:
        """Return how far it is off in hits and pace."""
        return self.error + PACE_WEIGHT * abs(math.log(self.pace))

    @property
    def think_seconds(self) -> float:
        """Return the mean think time."""
        return 1.0 if self.demand.sessions is None else self.demand.sessions.think_seconds


class SessionFit:
    """The engine of one page, with sessions of different kinds; what was simulated is not simulated again."""

    def __init__(self, page: Page, target: Target, answers: int = FIT_ANSWERS) -> None:
        self._page, self._target, self._answers = page, target, answers
        self._like = tuple(requests(page.prompts, page.outputs, 0.0, 0.0))
        self._tried: dict[tuple[Server, Sessions, int], Fit] = {}

    def best(self, server: Server, shape: Sessions, known_fit: Fit | None = None) -> Fit:
        """Fit think times and the number of sessions to the hits, then the steps to how long they take, and again."""
        fit = best = known_fit or self.think(server, shape)
        for _ in range(FITS - 1):
            if abs(fit.pace - 1) < FITTED_RATIO:
                break
            steps = fit.server.steps.scaled(min(MAX_SCALE, max(1 / MAX_SCALE, fit.pace)))
            fit = self.think(replace(server, steps=steps), shape, fit.think_seconds)
            best = min(best, fit, key=lambda fit: fit.misfit)
        return best

    def think(self, server: Server, shape: Sessions, around: float | None = None) -> Fit:
        """Bisect the mean think time: the longer, the more sessions there are at the same rate, and the fewer hits."""
        page, target = self._page, self._target
        rate, present = page.generated / page.seconds / page.outputs.mean, page.running + page.waiting
        low, high = SHORTEST_SECONDS, MAX_CLIENTS / rate
        if around is not None:
            low, high = around / AGAIN_FACTOR, around * AGAIN_FACTOR
        fits: list[Fit] = []
        more = less = 0.0
        for _ in range(BISECTIONS if around is None else BISECTIONS_AGAIN):
            # Between two that are known, hits fall about evenly with the logarithm; never too near an end to move.
            share = min(0.85, max(0.15, more / (more + less))) if more and less else 0.5
            think = low * (high / low) ** share
            fits.append(
                self._fit(server, shape.thinking(think / shape.think_seconds), max(1, round(rate * think + present)))
            )
            off = sum(fits[-1].outcome.hits_by_pool) - sum(target.hits)
            if abs(off) <= CLOSE_ENOUGH * len(target.hits):
                break
            low, high, more, less = (think, high, off, less) if off > 0 else (low, think, more, -off)
        return min(fits, key=lambda fit: fit.error)

    def _fit(self, server: Server, sessions: Sessions, clients: int) -> Fit:
        key = server, sessions, clients
        if key not in self._tried:
            self._tried[key] = self._simulated(server, Demand(self._like, clients, sessions=sessions))
        return self._tried[key]

    def _simulated(self, server: Server, demand: Demand) -> Fit:
        page, target = self._page, self._target
        simulation = Simulation(server, demand, target.pools)
        outcome = simulation.outcome(answers=self._answers)
        if outcome is None or not outcome.running or not outcome.hits_by_pool:
            raise UnknownError("the simulation completes no request")
        squares = [(ours - theirs) ** 2 for ours, theirs in zip(outcome.hits_by_pool, target.hits, strict=True)]
        pace = outcome.tokens_per_second / outcome.running / (page.generated / page.seconds / page.running)
        return Fit(server, demand, simulation, outcome, math.sqrt(sum(squares) / len(squares)), pace)


THINK_RATIO: Final = 5.0
"""Longest over shortest think time, where it is not known."""
THINK_RATIOS_OTHERWISE: Final = (2.0, 20.0)
"""How much hangs on that."""
NARROWER: Final = (3.0, 1.5)
WIDER: Final = (12.0, 40.0)
"""Tried where the hits of other pools are known."""
LEAST_HITS: Final = 0.03
"""Below it nothing that comes back is found: any think time beyond the age at eviction would do the same."""
LONG_PROMPT: Final = 0.99
"""Quantile of a prompt that hardly any is longer than."""
LEAST_LONG_INTERVALS: Final = 12
BATCH_SHARE: Final = 0.5
"""Of a step's time, that grows with the batch where it is not known: with long contexts steps read mostly these."""
HITS_ERROR: Final = 0.1
"""Of hits, beyond which the simulation is not the engine."""
SQRT_3: Final = math.sqrt(3)
"""Half the width of an even distribution over its standard deviation."""
MAX_FACTOR: Final = 3.0
"""Times today's pool, up to which its hits are reproduced; larger ones are hardly ever chosen."""
MAX_TURNS: Final = 100
LEAST_FIRST: Final = 0.1
"""Of the mean prompt, that a session begins with at least."""


def known_sessions(
    observed: Observed | None, limits: Limits, thresholds: Thresholds, *, think_ratio: float | None = None
) -> Known:
    """Return the engine with sessions as it can be simulated. Raises UnknownError with what is not known.

    `think_ratio` is the longest think time over the shortest. Without it the hits by pool decide, where they are known.
    """
    page = _over_minutes(read(observed, limits, even=True))
    target = _target(page)
    shape = growing_turns(page, target.best)
    fitting = SessionFit(page, target, COARSE_FIT_ANSWERS if think_ratio else FIT_ANSWERS)
    best = fitting.best(_server(page, limits), replace(shape, think=(1.0, think_ratio or THINK_RATIO)))
    for side in (NARROWER, WIDER) if page.observed.hits_by_pool and not think_ratio else ():
        for ratio in side:
            fit = fitting.think(best.server, replace(shape, think=(1.0, ratio)), best.think_seconds)
            if fit.misfit >= best.misfit:
                break  # farther on the same side it is worse still
            best = fit
    if best.demand.sessions is not None:
        best = fitting.best(best.server, best.demand.sessions, best)
    preempted = (sum_of(page.intervals, "preempted") or 0.0) / page.seconds
    noise = 0.0 if page.observed.minutes is None else tokens_deviation_ratio(page.observed.minutes.intervals)
    measured = Measured(page.generated / page.seconds, page.running, page.waiting, preempted, noise)
    speed = best.outcome.tokens_per_second / measured.tokens_per_second
    if best.error > HITS_ERROR or abs(speed - 1) > thresholds.advice.simulated_error_max_ratio:
        raise UnknownError("the simulation with sessions does not reproduce the current hits and throughput")
    cache = page.observed.cache
    return Known(
        *(best.server, best.demand, page.prompts, page.outputs, measured, cache.bytes_per_token),
        kv_bits=cache.kv_bits,
        measured_hits=measured_hits(best.simulation, target.pools, target.hits),
        simulation=best.simulation,
    )


def _over_minutes(page: Page) -> Page:
    """Return the page with means over minutes in place of those of its newest one."""
    long = page.observed.minutes
    if long is None or not long.running:
        raise UnknownError("what the prefix cache finds is not known, or not for long enough")
    generated = long.tokens_per_second * page.seconds
    return replace(page, running=long.running, waiting=long.waiting, generated=generated)


def _target(page: Page) -> Target:
    observed, best = page.observed, best_hit_ratio(page.observed)
    if best is None or observed.minutes is None:
        raise UnknownError(
            "how much would be found if nothing were evicted is not known: this engine never had a cache that turned "
            "over slowly enough to tell; KV events would"
        )
    now = observed.minutes.hit_ratio
    if observed.hits_by_pool:
        # Events have the hits of larger pools, the page those of this one.
        rows = (PoolHits(1.0, now), *(hits for hits in observed.hits_by_pool if 1.0 < hits.factor <= MAX_FACTOR))
        return Target(tuple(hits.factor * page.pool for hits in rows), tuple(hits.ratio for hits in rows), best)
    if now - shared_tokens(page) / page.prompts.mean < LEAST_HITS:
        raise UnknownError(
            "contexts are evicted before any of them is asked for again, so the page does not tell how many there are; "
            "KV events would"
        )
    return Target((page.pool,), (now,), best)


def shared_tokens(page: Page) -> float:
    """Return the tokens that begin every prompt: hits that need no capacity, found also where no context is kept.

    A smaller pool than today's has hardly any others; of today's hits some may be of contexts that were kept.
    """
    smallest = min(page.observed.hits_by_pool, key=lambda hits: hits.factor, default=None)
    if smallest is not None and smallest.factor < 1.0:
        return smallest.ratio * page.prompts.mean
    # So many requests at least got their first token in that time.
    longest = page.prompts.at(LONG_PROMPT)
    found = [
        (interval.prompted - interval.computed) / max(1, interval.prompted // longest)
        for interval in page.intervals
        if interval.prompted and interval.computed is not None
    ]
    most = math.inf if smallest is None or smallest.factor > 1.0 else smallest.ratio * page.prompts.mean
    return min(most, max(0.0, min(found))) if len(found) >= LEAST_INTERVALS else 0.0


def _server(page: Page, limits: Limits) -> Server:
    cache = page.observed.cache
    return Server(
        pool_tokens=page.pool,
        steps=_steps(page),
        block_tokens=float(cache.block_size or 16),
        max_num_seqs=limits.max_num_seqs.value if limits.max_num_seqs else math.inf,
        step_tokens=limits.max_num_batched_tokens.value if limits.max_num_batched_tokens else STEP_TOKENS,
        watermark_tokens=(cache.watermark_ratio or 0.0) * page.pool,
    )


def _steps(page: Page) -> StepSeconds:
    """Return the step times, from long intervals where there are enough: a prompt is computed before it is counted."""
    long = () if page.observed.minutes is None else page.observed.minutes.intervals
    intervals, prefill = long if len(long) >= LEAST_LONG_INTERVALS else page.intervals, _prefill(page.observed)
    steps = step_seconds(intervals, prefill)
    return steps if steps.sequence else step_seconds(intervals, prefill, per_sequence=BATCH_SHARE)


def _prefill(observed: Observed) -> tuple[float, float] | None:
    """Return seconds from admission to first token, and tokens computed for it; None where the page does not say."""
    if not observed.prefill_seconds or not observed.prefill_tokens:
        return None
    cached = observed.cached_ratio or 0.0
    return observed.prefill_seconds, observed.prefill_tokens * (1.0 - (cached if cached >= SHARED_RATIO else 0.0))


def growing_turns(page: Page, best: float) -> Sessions:
    """Return how sessions grow: evenly, with the prompts' mean and spread, and their hits if nothing is evicted.

    Of n turns all but the last are found again with their answers, and what all prompts share at the first: of a mean
    prompt L, a growth g a turn and answers O, n best L = (n - 1) (L - g / 2 + O) + shared. That gives g for each n.
    """
    mean, answers, shared = page.prompts.mean, page.outputs.mean, shared_tokens(page)
    width = 2 * SQRT_3 * deviation(page.prompts)

    def growth(turns: int) -> float:
        return 2 * (mean + answers - (turns * best * mean - shared) / (turns - 1))

    def first(turns: int) -> float:
        return mean - (turns - 1) * growth(turns) / 2

    possible = [n for n in range(2, MAX_TURNS) if growth(n) > answers and first(n) >= max(shared, LEAST_FIRST * mean)]
    if not possible:
        raise UnknownError("its hits are not those of sessions whose prompts grow turn by turn")
    turns = min(possible, key=lambda n: abs((n - 1) * growth(n) - width))
    words, half = growth(turns) - answers, min(SQRT_3 * deviation(page.outputs), answers - 1)
    return Sessions(
        think=(1.0, 1.0),
        first=(first(turns), first(turns)),
        words=(words, words),
        answers=(answers - half, answers + half),
        turns=(turns, turns),
        shared=round(shared),
    )


def deviation(lengths: LengthDistribution) -> float:
    """Return the standard deviation, in tokens."""
    squares = (
        bucket.share * (bucket.first**2 + bucket.first * bucket.last + bucket.last**2) / 3 for bucket in lengths.buckets
    )
    return math.sqrt(max(0.0, sum(squares) - lengths.mean**2))
