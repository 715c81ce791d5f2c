"""How long steps take where sessions come back, out of intervals of minutes: a division of their time, with no prior.

`steps` leans on a prior of cards, and puts down to the tokens that precede a prompt's what here shows by itself: with
it, 32 of 39 of the lab's hits were within 0.05 where 35 are (`bench/advice/eviction.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from kvpressure.model.view import Interval
from kvpressure.simulation.server import StepSeconds
from kvpressure.simulation.steps import DRAFTED_RATIO, LEAST_INTERVALS, UnknownError, computed_in

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
    """Divide the time of the intervals among steps, sequences and prompt tokens. Raises UnknownError.

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
