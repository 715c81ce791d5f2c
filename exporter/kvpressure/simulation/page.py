"""What an engine's polls have, where all that a simulation needs is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvpressure.model.limits import Limits
from kvpressure.model.view import Interval, Observed
from kvpressure.simulation.lengths import LengthDistribution, lengths
from kvpressure.simulation.steps import LEAST_INTERVALS, UnknownError


@dataclass(frozen=True, slots=True)
class Page:
    """What an engine's polls have, where all that a simulation needs is known. `generated` tokens in `seconds`."""

    observed: Observed
    pool: float
    prompts: LengthDistribution
    outputs: LengthDistribution
    intervals: tuple[Interval, ...]
    running: float
    waiting: float
    seconds: float
    generated: float


def read(
    observed: Observed | None, limits: Limits, *, spread: float = 1.0, tail: float = 0.0, even: bool = False
) -> Page:
    """Return what was observed of an engine. Raises UnknownError with what is missing.

    How lengths lie in their buckets is as for `lengths`.
    """
    if observed is None:
        raise UnknownError("the traffic of this engine is not known")
    cache = observed.cache
    pool = limits.kv_capacity_tokens.value if limits.kv_capacity_tokens else cache.capacity_tokens
    prompts, outputs = (
        None if histogram is None else lengths(histogram, cache.max_model_len, spread=spread, tail=tail, even=even)
        for histogram in (observed.prompts, observed.outputs)
    )
    if pool is None or cache.admission != "prompt":
        reserved = "its scheduler reserves room for answers in advance, which is not simulated"
        raise UnknownError("the size of the KV pool is not known" if cache.admission == "prompt" else reserved)
    if prompts is None or outputs is None:
        raise UnknownError("no request has finished yet, so their lengths are not known")
    intervals = counted(observed.intervals)
    if len(intervals) < LEAST_INTERVALS:
        raise UnknownError("there are too few polls yet")
    running, waiting = mean_of(each.running for each in intervals), mean_of(each.waiting for each in intervals)
    seconds, generated = sum(interval.seconds for interval in intervals), sum_of(intervals, "generated")
    if not generated or not running:
        raise UnknownError("no tokens were generated")
    return Page(observed, pool, prompts, outputs, intervals, running, waiting, seconds, generated)


def counted(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Return those in which running and waiting requests were counted."""
    return tuple(each for each in intervals if each.running is not None and each.waiting is not None)


def present_in(interval: Interval) -> float:
    """Return how many requests run and wait."""
    return (interval.running or 0.0) + (interval.waiting or 0.0)


def mean_of(values: Iterable[float | None]) -> float:
    """Return the mean of those that are known, 0 without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 0.0


def sum_of(intervals: Sequence[Interval], name: str) -> float | None:
    """Return the sum of a field where it is known, None where it is nowhere."""
    known = [value for interval in intervals if (value := getattr(interval, name)) is not None]
    return sum(known) if known else None
