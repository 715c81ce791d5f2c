"""Traffic as it is described, as requests to simulate; and what its description leaves open."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

from kvpressure.model.limits import Limits
from kvpressure.simulation.calibrate import Given, Known, Measured
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.demand import requests
from kvpressure.simulation.lengths import Bucket, LengthDistribution
from kvpressure.simulation.models import engines_of, modelled
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Demand, RequestShape, Server, StepSeconds, StepTimes
from kvpressure.simulation.step_table import CARD_RATIOS, CardSteps
from kvpressure.simulation.steps import UnknownError, batch_of, knee_of

_NORMAL: Final = NormalDist()
Z95: Final = _NORMAL.inv_cdf(0.95)
"""Standard deviations from the middle of a normal distribution to its p95."""
LONG_RATIO: Final = 0.06
"""Share of the long ones where there are two groups: p95 then is the length of one of them."""
STEEPEST: Final = math.exp(Z95 * Z95 / 2)
"""p95 over mean, 3.87, beyond which no lognormal distribution has both."""
BATCH_SHARE: Final = 0.3
"""Of a step's time, that may grow with the batch where it was not measured."""
HOST_LAYER_SECONDS: Final = 5e-5
"""That a host which launches kernels by CUDA graphs adds for each layer at most."""
_SHARES: Final = (*(place / 20 for place in range(20)), 0.99)


class DescriptionError(Exception):
    """A description that no traffic has; the message says what contradicts what."""


@dataclass(frozen=True, slots=True)
class MeanAndP95:
    """Lengths in tokens, at least 1: their mean, and what 5 % of them exceed."""

    mean: float
    p95: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Prompts and answers; `clients` that wait for their answers, or requests that come at a `rate` per second."""

    prompts: MeanAndP95
    answers: MeanAndP95
    clients: int = 0
    rate: float = 0.0


def under(server: Server, traffic: Traffic) -> Iterator[Known]:
    """Return the server under this traffic: the likeliest lengths first, then others of the same mean and p95.

    Raises UnknownError where it would answer no request, DescriptionError for lengths that nothing can have.
    """
    prompts, answers = spread(traffic.prompts), spread(traffic.answers)
    yield _known(server, traffic, prompts, answers, alike=0.0)
    yield _known(server, traffic, prompts, answers, alike=1.0)
    yield _known(server, traffic, in_two_groups(traffic.prompts), in_two_groups(traffic.answers), alike=0.0)


def alternatives(server: Server, traffic: Traffic) -> list[Known]:
    """Return the alternatives where step times are described too: what was not measured of them may be otherwise.

    Those of terms may grow with the batch; a card may be slower than its kernels one by one, or wait for its host.
    """
    knowns = list(under(server, traffic))
    steps, batch = server.steps, max(1.0, knowns[0].measured.running)
    others: list[StepTimes] = []
    if isinstance(steps, StepSeconds):
        share = BATCH_SHARE * steps.fixed
        others = [replace(steps, fixed=steps.fixed - share, sequence=share / batch)]
    if isinstance(steps, CardSteps):
        host = HOST_LAYER_SECONDS * steps.table.layers
        others = [*(steps.scaled(by) for by in CARD_RATIOS), replace(steps, host_seconds=host)]
    return [*knowns, *(next(under(replace(server, steps=other), traffic)) for other in others)]


def model_under(given: Given, traffic: Traffic, *, limit_seconds: float | None = None) -> Model:
    """Return the model of an engine under this traffic instead of its own. Raises as `under`."""
    found, others = engines_of(given)
    every = (under(within_caps(other.server, given.limits), traffic) for other in (found, *others))
    first, *alternatives = itertools.chain.from_iterable(every)
    return modelled(first, alternatives, given.thresholds, limit_seconds)


def within_caps(server: Server, limits: Limits) -> Server:
    """Return the server behind the caps in force, which described traffic knows nothing of."""
    prompt = limits.max_input_tokens
    output = limits.max_output_tokens
    total = limits.max_model_len
    return replace(
        server,
        cap_prompt=prompt.value if prompt else math.inf,
        cap_output=output.value if output else math.inf,
        cap_total=total.value if total else math.inf,
    )


def _known(
    server: Server, traffic: Traffic, prompts: LengthDistribution, answers: LengthDistribution, *, alike: float
) -> Known:
    shapes: tuple[RequestShape, ...] = tuple(requests(prompts, answers, 0.0, alike))
    demand = Demand.at_rate(shapes, traffic.rate) if traffic.rate else Demand(shapes, clients=traffic.clients)
    outcome = simulate(server, demand)
    if outcome is None or not outcome.tokens_per_second:
        raise UnknownError("the simulation completes no request: does one fit the pool?")
    measured = Measured(outcome.tokens_per_second, outcome.running, outcome.waiting, outcome.preempted_per_second)
    return Known(server, demand, prompts, answers, measured, knee_requests=knee_of(server.steps, batch_of(shapes)))


def spread(shape: MeanAndP95) -> LengthDistribution:
    """Return a lognormal distribution of this mean and p95, or one of two groups where no lognormal has them."""
    mean, p95 = shape.mean, shape.p95
    if p95 < mean:
        raise DescriptionError(f"a p95 of {p95:g} tokens is below the mean of {mean:g}")
    if p95 / mean >= STEEPEST:
        return in_two_groups(shape)
    # ln(p95 / mean) = Z95 s - s^2 / 2
    sigma = Z95 - math.sqrt(Z95 * Z95 - 2 * math.log(p95 / mean))
    middle = math.log(mean) - sigma * sigma / 2
    bounds = [0.0, *(math.exp(middle + sigma * _NORMAL.inv_cdf(share)) for share in (*_SHARES[1:], 0.9999))]
    below = [0.0, *(_NORMAL.cdf(_NORMAL.inv_cdf(share) - sigma) for share in _SHARES[1:]), 1.0]
    rows = zip(_SHARES, (*_SHARES[1:], 1.0), bounds, bounds[1:], below, below[1:], strict=False)
    # Each bucket at the mean of those in it: so the mean of all is right.
    return LengthDistribution(
        tuple(
            Bucket(end - start, low, high, each, each)
            for start, end, low, high, before, after in rows
            for each in (mean * (after - before) / (end - start),)
        )
    )


def in_two_groups(shape: MeanAndP95) -> LengthDistribution:
    """Return short ones that are all alike and a few as long as the p95, of this mean and p95 and no tail beyond it."""
    short = (shape.mean - LONG_RATIO * shape.p95) / (1 - LONG_RATIO)
    if short < 1:
        raise DescriptionError(f"with a p95 of {shape.p95:g} tokens the mean cannot be as small as {shape.mean:g}")
    groups = ((1 - LONG_RATIO, short), (LONG_RATIO, shape.p95))
    return LengthDistribution(tuple(Bucket(share, tokens, tokens, tokens, tokens) for share, tokens in groups))
