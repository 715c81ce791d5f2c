"""From what is known of an engine to the sessions that come back to it: how they grow, think, and how many there are.

How many there are is not on the page. By Little's law they are as many as requests come while one thinks
and is answered; and they think for as long as makes the simulated cache find what the engine's own does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.limits import Limits
from kvpressure.model.view import Observed, PoolHits
from kvpressure.simulation.calibrate import Known, Measured, tokens_deviation_ratio
from kvpressure.simulation.hits import best_hit_ratio, measured_hits
from kvpressure.simulation.lengths import LengthDistribution
from kvpressure.simulation.long_steps import step_seconds
from kvpressure.simulation.page import LEAST_INTERVALS, Page, read, sum_of
from kvpressure.simulation.server import STEP_TOKENS, Server, StepSeconds
from kvpressure.simulation.session_fit import COARSE_FIT_ANSWERS, FIT_ANSWERS, SessionFit, Target
from kvpressure.simulation.sessions import Sessions, Span
from kvpressure.simulation.steps import SHARED_RATIO, UnknownError

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
    words = growth(turns) - answers
    return Sessions(
        think=(1.0, 1.0),
        first=(first(turns), first(turns)),
        words=(words, words),
        answers=_even(page.outputs),
        turns=(turns, turns),
        shared=round(shared),
    )


def deviation(lengths: LengthDistribution) -> float:
    """Return the standard deviation, in tokens."""
    squares = (
        bucket.share * (bucket.first**2 + bucket.first * bucket.last + bucket.last**2) / 3 for bucket in lengths.buckets
    )
    return math.sqrt(max(0.0, sum(squares) - lengths.mean**2))


def _even(lengths: LengthDistribution) -> Span:
    half = min(SQRT_3 * deviation(lengths), lengths.mean - 1)
    return lengths.mean - half, lengths.mean + half
