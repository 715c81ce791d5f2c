"""PURE: what to do about a diagnosis, in order, with computed values and commands to paste."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from kvpressure.advice import batch, evicted, others, pressure, waits
from kvpressure.advice.case import Case
from kvpressure.advice.expectations import explained
from kvpressure.advice.limits import known_limits
from kvpressure.advice.place import Place
from kvpressure.advice.shell import placeholders
from kvpressure.advice.verify import VERIFY, with_open_check
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.action import Action
from kvpressure.model.limits import Limit, Limits
from kvpressure.model.observed import Observed
from kvpressure.model.peer import Peer
from kvpressure.model.values import Derived
from kvpressure.model.verdict import Cause, Diagnosis

__all__ = ["Action", "Limit", "Limits", "Place", "advise", "known_limits"]

_BY_CAUSE: Final[dict[Cause, Callable[[Case], list[Action | None]]]] = {
    Cause.KV_CACHE_PRESSURE: pressure.kv_pressure,
    Cause.CONCURRENCY_BOUND: batch.concurrency_bound,
    Cause.COMPUTE_BOUND: batch.compute_bound,
    Cause.HOST_BOUND: others.host_bound,
    Cause.STUCK: others.stuck,
    Cause.HEALTHY: others.building,
    Cause.UNKNOWN: waits.unknown,
    Cause.DEFERRED: waits.deferred,
    Cause.PAUSED: lambda _: [],
    Cause.IDLE: lambda _: [],
}

_BY_DETAIL: Final[dict[str, Callable[[Case], list[Action | None]]]] = {"eviction": evicted.evicted}
"""Details whose cure is another than that of their cause."""


def _by_verdict(case: Case) -> list[Action | None]:
    diagnosis = case.diagnosis
    if diagnosis.detail in _BY_DETAIL:
        return _BY_DETAIL[diagnosis.detail](case)
    actions = _BY_CAUSE[diagnosis.cause](case)
    beside = diagnosis.cause is Cause.KV_CACHE_PRESSURE and case.symptom("evicting") is True
    return _both(actions, evicted.evicted(case)) if beside else actions


def _both(actions: Sequence[Action | None], beside: Sequence[Action | None]) -> list[Action | None]:
    """Return all of the first, then those of the others that do something else; what checks all of it comes last."""
    first, then = ([one for one in some if one is not None] for some in (actions, beside))
    done = {one.key for one in first}
    kept = [one for one in first if one.key != VERIFY]
    return [
        *kept,
        *(one for one in then if one.key not in done and one.key != VERIFY),
        *(one for one in first if one.key == VERIFY),
    ]


def advise(
    diagnosis: Diagnosis,
    derived: Derived,
    limits: Limits,
    place: Place,
    thresholds: Thresholds,
    *,
    silent: bool = False,
    observed: Observed | None = None,
    peers: Sequence[Peer] = (),
) -> tuple[Action, ...]:
    """Return the actions in the order to take them; empty when nothing is wrong.

    Of a `silent` engine, whose diagnosis is the last before it stopped answering, the first thing is to see whether it
    still runs. A device OOM is advised on whatever the cause is: the server that it killed seems idle or unknown.
    `peers` are other replicas that could take requests. Consequences are predicted from what was `observed`, which
    takes a second of CPU at most: not for every poll.
    """
    case = Case(diagnosis, derived, limits, place, thresholds, observed, peers)
    actions = _by_verdict(case)
    if case.device_oom and diagnosis.cause is not Cause.KV_CACHE_PRESSURE:
        actions = [*pressure.after_device_oom(case), *actions]
    if silent:
        actions = [*others.silent(case), *actions]
    chosen = explained(actions, diagnosis.cause)
    return tuple(
        replace(
            action, order=order, placeholders=placeholders(action.commands), checks=with_open_check(case, action.checks)
        )
        for order, action in enumerate(chosen, 1)
    )
