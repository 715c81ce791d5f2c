"""Models of engines: the likeliest of a page, and those that would show the same one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.limits import Limits
from kvpressure.model.view import Observed
from kvpressure.simulation.calibrate import Given, Known, Open, known
from kvpressure.simulation.calibrate_sessions import THINK_RATIOS_OTHERWISE, known_sessions
from kvpressure.simulation.consequences import COVERED_DEVIATIONS, Model
from kvpressure.simulation.returning import Returning, returning
from kvpressure.simulation.scheduler import COARSE_ANSWERS, COARSE_SESSION_ANSWERS, simulate
from kvpressure.simulation.steps import UnknownError, prior_otherwise

ROOM_FOR_ALL_FACTOR: Final = 100.0
OTHERWISE: Final = (
    Open(spread=0.0, tail=-COVERED_DEVIATIONS),
    Open(tail=COVERED_DEVIATIONS),
    Open(end=-COVERED_DEVIATIONS),
    Open(end=COVERED_DEVIATIONS),
    Open(alike=1.0),
    Open(other_arrivals=True),
)
"""What is not known of an engine, at its other end: lengths all alike in their bucket, and the longest ones as
short or as long as may be; what a larger batch takes, which
shows only once it is larger; and long answers that are those to long prompts."""
OF_CLIENTS: Final = Open(other_clients=True)
AT_RATE: Final = Open(rate_end=COVERED_DEVIATIONS)
"""Beside these, by whether any wait for their answers: that they keep to their lengths or do not, or that more come."""


def model_of(given: Given, *, limit_seconds: float | None = None) -> Model:
    """Return the model of an engine. Raises UnknownError.

    Without `limit_seconds` an answer may take a multiple of the healthy p95.
    """
    observed, thresholds = given.observed, given.thresholds
    found, others = engines_of(given)
    if limit_seconds is None and observed is not None and observed.healthy_seconds is not None:
        limit_seconds = thresholds.advice.late_min_factor * observed.healthy_seconds
    back = returning(found, observed, given.limits) if given.pool_limits else None
    return modelled(found, others, thresholds, limit_seconds, back, COARSE_ANSWERS)


def engines_of(given: Given) -> tuple[Known, list[Known]]:
    """Return the likeliest engine of a page, and others that would show the same one. Raises UnknownError."""
    found, others = known(given), list[Known]()
    dense = given.observed is None or prior_otherwise(given.observed.model_name) is None
    by_arrivals = OF_CLIENTS if found.demand.clients else AT_RATE
    for taken in (*OTHERWISE, by_arrivals, *(() if dense else (Open(experts=True),))):
        try:
            others.append(known(replace(given, growing=None) if taken.end else given, taken, like=found))
        except UnknownError:
            continue
    return found, others


def model_with_sessions(
    observed: Observed | None,
    limits: Limits,
    thresholds: Thresholds,
    *,
    limit_seconds: float | None = None,
    check: Callable[[Known], None] | None = None,
) -> Model:
    """Return the model of an engine whose sessions come back, and whose cache is finite. Raises UnknownError.

    Without hits of other pools, other spreads of think times would show the same. `check` raises UnknownError where
    the likeliest engine is not this one; then no others are fitted.
    """
    known, others = known_sessions(observed, limits, thresholds), []
    if check is not None:
        check(known)
    if observed is not None and limit_seconds is None and observed.healthy_seconds is not None:
        limit_seconds = thresholds.advice.late_min_factor * observed.healthy_seconds
    for ratio in () if observed is not None and observed.hits_by_pool else THINK_RATIOS_OTHERWISE:
        try:
            others.append(known_sessions(observed, limits, thresholds, think_ratio=ratio))
        except UnknownError:
            continue
    return modelled(known, others, thresholds, limit_seconds, answers=COARSE_SESSION_ANSWERS)


def modelled(
    known: Known,
    others: Iterable[Known],
    thresholds: Thresholds,
    limit_seconds: float | None = None,
    back: Returning | None = None,
    answers: int | None = None,
) -> Model:
    """Return the model of an engine, with `others` that fit the page as well. Raises UnknownError.

    Without `limit_seconds` an answer may take a multiple of what it takes with room for all that run. `answers` is as
    for `simulate`, of the others.
    """
    limit = limit_seconds or thresholds.advice.late_min_factor * _alone(known)
    made, likeliest = (
        [Model(other, limit, thresholds, answers=answers) for other in others],
        Model(known, limit, thresholds),
    )
    alike = [model for model in made if model.known.demand.sessions is not None or likeliest.answers_alike(model)]
    return Model(known, limit, thresholds, alike, back)


def _alone(known: Known) -> float:
    """Return the p95 with as many at once as run now, and room for all."""
    server, demand = known.server, known.demand
    running = max(1, round(known.measured.running))
    alone = replace(server, pool_tokens=ROOM_FOR_ALL_FACTOR * server.pool_tokens, max_num_seqs=math.inf)
    one = replace(demand, clients=running, rate=0.0, queue=0)
    outcome = simulate(alone, one, answers=COARSE_SESSION_ANSWERS if demand.sessions else None)
    if outcome is None:
        raise UnknownError("the simulation completes no request")
    return outcome.latency_p95
