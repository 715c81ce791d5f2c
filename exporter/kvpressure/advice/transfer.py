"""Prefill and decode apart: the cure is on the side that limits, which need not be the one where requests wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from kvpressure.advice.case import Case
from kvpressure.advice.others import remedied
from kvpressure.advice.rollout import no_longer
from kvpressure.advice.shell import look_again
from kvpressure.model.action import Action
from kvpressure.model.values import at
from kvpressure.model.verdict import Cause
from kvpressure.model.view import DecodeEngine
from kvpressure.runtimes.runtime import Remedy

MAX_NAMED: Final = 3
_NOT_SIMULATED: Final = "what the other side would do is not simulated"
_NOT_HERE: Final = "More KV cache or replicas on the prefill side would only keep more of them."
_SLOW: Final = "transfer"
_OF_TRANSFERS: Final = frozenset({_SLOW, "remote_kv", "external_kv"})
"""Details of `deferred` that wait for what prefill engines computed."""


def held_for_transfer(case: Case) -> tuple[list[Action | None], str]:
    """Return what to do on the decode side, by what its engines' verdicts say; where to look while none is known."""
    short = _named(engine for engine in case.decode_side if engine.cause is Cause.KV_CACHE_PRESSURE)
    slow = _named(
        engine for engine in case.decode_side if engine.cause is Cause.DEFERRED and engine.detail in _OF_TRANSFERS
    )
    if short:
        action = Action(
            key="decode_replica",
            title="Add decode replicas, or KV cache on the decode side",
            why=f"{short} out of KV cache: prompts that are finished here are not read. {_NOT_HERE}",
            cost="Another GPU (or set of GPUs) for as long as it runs; what the decode engines' own advice changes may "
            "cost less.",
            checks=no_longer(case, "kv_cache_pressure", "5 minutes after the decode side has room"),
            commands=look_again(case.place),
        )
    elif slow and (remedy := case.own.remedies.details.get(_SLOW)) is not None:
        why = f"{slow} waiting for transfers. {remedy.why} {_NOT_HERE}"
        action = _network(case, remedy, "kv_cache_pressure", why)
    else:
        action = Action(
            key="see_decode_side",
            title="See why the decode side does not read finished prompts",
            why="Most of the KV cache in use here are prompts that are finished. kv_cache_pressure of the decode "
            "engines: add decode replicas, or KV cache there. deferred: the network between the two is slow. Neither: "
            f"the router lost their requests, or the connector failed (its log). {_NOT_HERE}",
            cost="A minute.",
            checks=no_longer(case, "kv_cache_pressure", "5 minutes after the change"),
            commands=look_again(case.place),
        )
    return [action], _NOT_SIMULATED


def slow_transfer(case: Case) -> tuple[list[Action | None], str]:
    """Return what makes transfers faster; no change of this engine's batch or cache does.

    Where requests spend hardly any of their time in transfer it says so instead.
    """
    remedy, share = case.own.remedies.details.get(_SLOW), _waiting_share(case)
    if remedy is None:
        return [], _NOT_SIMULATED
    if share is None:
        return [_network(case, remedy, "deferred", remedy.why)], _NOT_SIMULATED
    most = f"Requests wait for at most {share:.0%} of their time here: a faster network gains no more than that."
    if share < case.thresholds.advice.gain_min_ratio:
        return [Action(key="would_not_help", title="Leave the network: transfers hardly matter", why=most)], ""
    return [_network(case, remedy, "deferred", f"{remedy.why} {most}")], _NOT_SIMULATED


def _waiting_share(case: Case) -> float | None:
    """Return the share of their time at this engine that requests wait, by how many wait and run (Little's law)."""
    waiting, running = (at(case.derived, f"requests_{state}") for state in ("waiting", "running"))
    return None if waiting is None or running is None or not waiting + running else waiting / (waiting + running)


def _network(case: Case, remedy: Remedy, cause: str, why: str) -> Action:
    action = remedied(case, remedy, cause, why)
    return replace(action, key=_SLOW, checks=no_longer(case, cause, "5 minutes after the change"))


def _named(engines: Iterable[DecodeEngine]) -> str:
    """Return the decode engines as the beginning of a sentence; "" where there is none."""
    found = [engine.target for engine in engines]
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    named = f"{', '.join(found[:MAX_NAMED])}{more}"
    return f"Decode engine{'s' if len(found) > 1 else ''} {named} {'are' if len(found) > 1 else 'is'}" if found else ""
