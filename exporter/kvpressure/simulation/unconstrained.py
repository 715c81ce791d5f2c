"""Tokens a second that an engine would generate if the pool were no limit, and up to which batch it gains by more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from kvpressure.model.family import engine_family
from kvpressure.model.limits import Limits
from kvpressure.model.values import Derived, known
from kvpressure.model.view import Interval, Observed
from kvpressure.simulation.demand import GROWTH_SHARE, growth
from kvpressure.simulation.page import counted, mean_of, sum_of
from kvpressure.simulation.steps import DENSE, Steps, UnknownError, prior_of, steps_of

LEAST_CHANGE: Final = 3.0
"""Requests by which the queue of clients who wait may grow or shrink: some think a while, some are new."""
CHANCE_DEVIATIONS: Final = 2.0

EVERY_SECONDS: Final = 10.0
KNEE_EVERY_SECONDS: Final = 60.0
"""The minute of polls that tells it is another one only then."""

FAMILIES: Final = (
    engine_family(
        "running_knee_requests",
        "Running requests beyond which 10 % more give less than 5 % more tokens per second, from the engine's step "
        "times of the last minute: a larger batch then mostly adds latency. Absent if step times do not show it, or "
        "if hundreds of times as many would still gain.",
    ),
)


class UnconstrainedThroughput:
    """Throughput of an engine under pressure if the pool were no limit, computed again every `EVERY_SECONDS`.

    With the knee of its running requests, whatever its verdict is, to be computed every `KNEE_EVERY_SECONDS`; it was at
    `knee_t`.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self.knee_requests: float | None = None
        self.knee_t = self._t = -math.inf

    def families(self) -> Derived:
        """Return `running_knee_requests`."""
        return known({"running_knee_requests": self.knee_requests})

    def update_knee(self, t: float, observed: Observed, limits: Limits) -> None:
        """Compute the knee at time `t`."""
        self.knee_t, self.knee_requests = t, None
        try:
            knee = _steps(observed, limits).knee_requests
        except UnknownError:
            return
        self.knee_requests = knee if math.isfinite(knee) else None

    def update(self, t: float, observed: Observed | None, limits: Limits) -> None:
        """Compute the rate at time `t`; `observed` is None where the engine is not under pressure."""
        if observed is None:
            self.rate, self._t = None, -math.inf
        elif abs(t - self._t) >= EVERY_SECONDS:
            self.rate, self._t = unconstrained_tokens_per_second(observed, limits), t


def unconstrained_tokens_per_second(observed: Observed, limits: Limits) -> float | None:
    """Return the rate by the engine's own steps over the window; None where these do not show it.

    Clients who wait for their answers would all be in the batch. Where requests come at a rate, so that the queue grows
    or drains, nobody would have queued: as many tokens come out as are asked for.
    """
    intervals = counted(observed.intervals)
    generated, seconds = sum_of(intervals, "generated"), sum(interval.seconds for interval in intervals)
    if not generated or generated < 0 or seconds <= 0:
        return None
    try:
        steps = _steps(observed, limits)
    except UnknownError:
        return None
    batch = mean_of(each.running for each in intervals) + mean_of(each.waiting for each in intervals)
    if limits.max_num_seqs is not None:
        batch = min(batch, limits.max_num_seqs.value)
    computed = sum_of(intervals, "computed")
    prompts = computed if computed is not None else sum_of(intervals, "prompted") or 0.0
    chunk, each = batch * max(0.0, prompts) / generated, steps.batch
    step = steps.likeliest.of(batch, chunk, batch * each.context_tokens, chunk * each.preceding_tokens)
    if not (step > 0 and math.isfinite(batch / step)):
        return None
    offered = _offered_tokens_per_second(intervals, observed, seconds, generated / seconds)
    return batch / step if offered is None else min(batch / step, offered)


def _steps(observed: Observed, limits: Limits) -> Steps:
    pool = limits.kv_capacity_tokens
    tokens = pool.value if pool else observed.cache.capacity_tokens
    return steps_of(observed, tokens, prior_of(observed.model_name) or DENSE)


def _offered_tokens_per_second(
    intervals: Sequence[Interval], observed: Observed, seconds: float, generated_per_second: float
) -> float | None:
    """Return tokens a second that are requested, where clients do not wait for their answers; None where they do.

    Clients who wait are as many as before. A change that is more than chance does to arrivals tells of others.
    """
    grown, outputs = growth(intervals), observed.outputs
    came = max(0.0, sum_of(intervals, "finished") or 0.0) + max(0.0, grown)
    if abs(grown) <= max(LEAST_CHANGE, CHANCE_DEVIATIONS * math.sqrt(came)):
        return None
    if outputs is None or not outputs.count or not outputs.sum:
        return None
    return max(0.0, generated_per_second + grown / (GROWTH_SHARE * seconds) * outputs.sum / outputs.count)
