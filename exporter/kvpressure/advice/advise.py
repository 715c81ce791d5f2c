"""PURE: what to do about a diagnosis, in order, with computed values and commands to paste."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kvpressure.advice import cache, others, pressure
from kvpressure.advice.case import Case, Place
from kvpressure.advice.limits import known_limits
from kvpressure.advice.others import stuck
from kvpressure.advice.rollout import VERIFY, with_open_check
from kvpressure.advice.shell import placeholders
from kvpressure.model.action import AFTER, NOW, Action
from kvpressure.model.catalogue import NOT_KNOWN
from kvpressure.model.limits import Limit, Limits
from kvpressure.model.verdict import Cause
from kvpressure.model.view import CALM

__all__ = ["Action", "Case", "Limit", "Limits", "Place", "advise_on", "known_limits"]

_BY_CAUSE: Final[dict[Cause, Callable[[Case], tuple[list[Action | None], str]]]] = {
    Cause.KV_CACHE_PRESSURE: pressure.kv_pressure,
    Cause.CONCURRENCY_BOUND: others.concurrency_bound,
    Cause.COMPUTE_BOUND: others.compute_bound,
    Cause.HOST_BOUND: others.host_bound,
    Cause.STUCK: stuck,
    Cause.HEALTHY: pressure.building,
    Cause.UNKNOWN: others.unknown,
    Cause.DEFERRED: others.deferred,
    Cause.PAUSED: lambda _: ([], ""),
    Cause.IDLE: lambda _: ([], ""),
}
"""Each returns its actions, and why nothing could be predicted of them, "" where that is not special to the case."""
_BY_DETAIL: Final[dict[str, Callable[[Case], tuple[list[Action | None], str]]]] = {
    "eviction": pressure.evicted,
    "held_for_transfer": others.held_for_transfer,
    "other_pool": cache.larger_other_pool,
    "reserved": pressure.reserved,
    "stranded": stuck,
    "transfer": others.slow_transfer,
}
"""Details whose cure is another than that of their cause."""

_CHANGE_NOTHING: Final = frozenset(
    {
        "apply",
        "abort_request",
        "another_limit",
        "look_longer",
        "measure",
        "release_blocks",
        "save_evidence",
        "see_decode_side",
        "see_what_is_waited_for",
        "see_whether_it_runs",
        VERIFY,
        "would_not_help",
    }
)
"""What only looks, or puts in force what other actions change."""
_NOW: Final = frozenset(
    {
        "abort_request",
        "add_replica",
        "another_limit",
        "ask_less",
        "cap_output",
        "cap_prompt",
        "cap_tokens",
        "decode_replica",
        "fewer_sessions",
        "look_longer",
        "release_blocks",
        "route",
        "save_evidence",
        "see_decode_side",
        "see_what_is_waited_for",
        "see_whether_it_runs",
    }
)
"""What a router, a gateway or a new server does, and what only looks."""
_NOTHING: Final = frozenset({"would_not_help", VERIFY})
_USES_WHAT_IS_THERE: Final = "route"
"""Costs nothing and is at once: it comes before what refuses requests or needs GPUs, whatever these gain."""
_ORDER: Final = (NOW, AFTER, "")
_ENDS_REQUESTS: Final = "restart"
"""Mends nothing where the verdict is wrong."""
_UNPREDICTED_ACTION: Final = {
    "restart": "a restart changes no limit",
    "host_memory": "it keeps the server alive, and changes nothing that it does",
    "less_work": "the page does not say how long the steps of another model would take",
    "queue_limit": "the page does not say how long the requests were that were refused",
}
_UNPREDICTED_CAUSE: Final = {
    Cause.HOST_BOUND: "the time passes outside the engine's steps, and only these are simulated",
    Cause.STUCK: "the engine does nothing, so there is nothing to start from",
    Cause.HEALTHY: "nothing is lost yet that could be won back",
}
_ELSE: Final = "too little is known of the traffic"


def _by_verdict(case: Case) -> tuple[list[Action | None], str]:
    """Return the actions, and why they could not be predicted."""
    diagnosis = case.diagnosis
    if diagnosis.detail in _BY_DETAIL:
        return _BY_DETAIL[diagnosis.detail](case)
    return _BY_CAUSE[diagnosis.cause](case)


def _unconfirmed(case: Case) -> tuple[list[Action | None], str]:
    """Return what to do about a verdict that the evidence does not bear out: nothing that has a cost."""
    if case.diagnosis.cause in (Cause.STUCK, NOT_KNOWN):
        return _by_verdict(case)
    return ([] if case.diagnosis.cause in CALM else [others.unconfirmed(case)]), ""


def advise_on(case: Case, *, silent: bool = False, unread: str = "") -> tuple[Action, ...]:
    """Return the actions in the order to take them, those without a restart first; empty when nothing is wrong.

    Of a `silent` engine, whose diagnosis is the last before it stopped answering, the first thing is to see whether it
    still runs, or what `unread`, the word of how its last poll ended, asks for. A device OOM is advised on whatever the
    cause is: the server that it killed seems idle or unknown. Consequences are predicted where anything was observed:
    half a second of CPU at most, so not for every poll.
    """
    diagnosis, thresholds = case.diagnosis, case.thresholds
    unsure = diagnosis.confidence < thresholds.advice.destructive_min_confidence_ratio
    too_early = unsure or diagnosis.t - diagnosis.since < thresholds.progress.stuck_min_seconds
    actions, reason = _unconfirmed(case) if unsure and not case.device_oom else _by_verdict(case)
    first: list[Action | None] = [others.silent(case, unread)] if silent else []
    if case.device_oom and diagnosis.cause is not Cause.KV_CACHE_PRESSURE:
        first += pressure.after_device_oom(case)
    explained = [_explained(action, diagnosis.cause, "") for action in first if action is not None]
    explained += [_explained(action, diagnosis.cause, reason) for action in actions if action is not None]
    if diagnosis.cause is Cause.STUCK and too_early:
        explained = [_looked_at(case, step) if step.key == _ENDS_REQUESTS else step for step in explained]
    elif unsure:
        explained = [step for step in explained if step.key != _ENDS_REQUESTS]
    simulated = {
        step.key: step.expected.gain_ratio for step in actions if step is not None and step.expected is not None
    }
    placed = [replace(action, when=_when(action, diagnosis.cause)) for action in explained]
    refuses = {step.key for step in actions if step is not None and _refuses_too_many(case, step)}
    placed = sorted(_most_gain_first(case, placed, simulated, refuses), key=lambda step: _ORDER.index(step.when))
    return tuple(
        replace(
            action, order=order, placeholders=placeholders(action.commands), checks=with_open_check(case, action.checks)
        )
        for order, action in enumerate(placed, 1)
    )


def _refuses_too_many(case: Case, action: Action) -> bool:
    """Return whether it refuses or cuts more than a first step may, so that it only stands beside one."""
    return action.expected is not None and action.expected.unserved_ratio > case.thresholds.advice.refused_max_ratio


def _most_gain_first(
    case: Case, actions: Sequence[Action], simulated: Mapping[str, float], refuses: Container[str]
) -> list[Action]:
    """Return the actions; of the predicted ones without a restart the one that gains most comes first.

    Of equal ones the first that is listed does; `simulated` are gains by key, where no number is certain enough to be
    printed those decide. What uses replicas that have room stays where it is, and so does what `refuses` too many.
    """
    ordered = list(actions)
    now = {
        at: action
        for at, action in enumerate(ordered)
        if action.when == NOW and action.key != _USES_WHAT_IS_THERE and action.key not in refuses
    }
    gain_at = {at: action.expected.gain_ratio for at, action in now.items() if action.expected is not None}
    gains = gain_at or {at: simulated[action.key] for at, action in now.items() if action.key in simulated}
    if gains:
        enough = (1 + max(gains.values())) * (1 - case.thresholds.advice.gain_min_ratio)
        most = next(at for at, gain in gains.items() if 1 + gain >= enough)
        ordered.insert(min(gains), ordered.pop(most))
    return ordered


def _looked_at(case: Case, action: Action) -> Action:
    """Return what takes the place of an action that would end requests on a verdict that is unsure or too young."""
    looks, diagnosis = others.silent(case), case.diagnosis
    floor = case.thresholds.advice.destructive_min_confidence_ratio
    why = f"from a confidence of {floor:.0%} on; it is {diagnosis.confidence:.0%}"
    if diagnosis.confidence >= floor:
        seconds = diagnosis.t - diagnosis.since
        why = f"once the verdict is {case.thresholds.progress.stuck_min_seconds:.0f} s old; it is {seconds:.0f} s old"
    return replace(
        looks,
        title="See whether the server still serves",
        why=f"{action.title} would end its requests, and is advised {why}.",
    )


def _when(action: Action, cause: Cause) -> str:
    if action.key in _NOTHING or (action.key == "memory_headroom" and not action.flags):
        return ""
    lost_anyway = cause is Cause.STUCK  # a server that gets nowhere has no work left to lose
    return NOW if action.key in _NOW or lost_anyway else AFTER


def _explained(action: Action, cause: Cause, reason: str) -> Action:
    """Return the action; without a predicted effect it says why, with `reason` where nothing else is known to be."""
    if action.expected is not None and action.expected.doubt:
        return replace(action, expected=None, unpredicted=action.expected.text)
    stays = action.key == "memory_headroom" and not action.flags
    if action.expected is not None or action.unpredicted or action.key in _CHANGE_NOTHING or stays:
        return action
    why = _UNPREDICTED_CAUSE.get(cause) or _UNPREDICTED_ACTION.get(action.key) or reason or _ELSE
    return replace(action, unpredicted=why)
