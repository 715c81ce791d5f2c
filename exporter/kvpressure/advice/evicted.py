"""Contexts that are evicted and computed again: fewer of them for each pool, or a pool that keeps more."""

from __future__ import annotations

from kvpressure.advice.case import Case
from kvpressure.advice.expectations import explained
from kvpressure.advice.memory import memory_headroom
from kvpressure.advice.replicas import route
from kvpressure.advice.shell import apply_flags
from kvpressure.advice.verify import VERIFY, expected, no_longer
from kvpressure.model.action import Action
from kvpressure.model.values import number
from kvpressure.simulation.config_changes import KV_DTYPE

_UNPRICED = "the simulated engine has no prefix cache of finite size, so what a larger one would find is not known"


def evicted(case: Case) -> list[Action | None]:
    """Return what needs no restart first; then what makes the pool keep more."""
    actions = [route(case), _fewer_sessions(case), small_kv(case), _enough(case), _offload(case), _verify(case)]
    return [*explained(actions, case.diagnosis.cause, _UNPRICED)]


def _fewer_sessions(case: Case) -> Action:
    held = case.request_p95
    many = ""
    if held and case.capacity:
        many = f" The pool holds about {number(int(case.capacity // held))} contexts of p95 length at a time."
    return Action(
        key="fewer_sessions",
        title="Send fewer sessions to this replica, and each always to the same one",
        why="The least recently used context is evicted first, so sessions that take turns push each other out just "
        f"before they come back; a few less, and most find their context again.{many}",
        cost="Other replicas get those sessions, or they wait at the gateway.",
        checks=("Within 10 minutes:", _hits(case)),
        commands=("# at the gateway: session affinity, and a limit of sessions for each replica",),
    )


def small_kv(case: Case) -> Action | None:
    """Return the change to a KV cache in 8 bits; None where the runtime has none."""
    flags = case.own.change(KV_DTYPE, case.own.small_kv)
    if not flags or case.capacity is None:
        return None
    return Action(
        key=KV_DTYPE,
        title="After the incident: keep the KV cache in 8 bits",
        current="not visible (as the model's weights unless set)",
        new=case.own.small_kv,
        why=f"The same memory keeps twice as much: about {number(round(2 * case.capacity))} tokens instead of "
        f"{number(round(case.capacity))}. Leave it out if the cache is in 8 bits already.",
        cost="A restart empties the cache. Some accuracy: evaluate answers before users see them.",
        checks=("After the restart:", expected(case, "kv_capacity_tokens", ">=", 1.9 * case.capacity), _hits(case)),
        commands=apply_flags(case.place, flags),
        flags=flags,
    )


def _enough(case: Case) -> Action | None:
    """Return the change to a larger memory share, where there is room for one."""
    action = memory_headroom(case)
    return action if action.flags else None


def _offload(case: Case) -> Action | None:
    name = case.own.flags.get("kv_offloading")
    if name is None:
        return None
    return Action(
        key="kv_offloading",
        title="After the incident: keep evicted contexts in the host's memory",
        why=f"{name} in GiB. Loading a context from there is mostly faster than computing it.",
        cost="That much memory of the host, and a restart, which empties the cache.",
        checks=("After the restart:", _hits(case)),
    )


def _verify(case: Case) -> Action:
    return Action(
        key=VERIFY,
        title="Verify recovery",
        why="Only sessions that come back show whether the cache keeps their contexts.",
        checks=no_longer(case, "kv_cache_pressure", "10 minutes of the usual traffic", _hits(case)),
    )


def _hits(case: Case) -> str:
    now = case.derived.get("prefix_cache_hit_ratio")
    least = 0.5 if not isinstance(now, float) else min(0.9, now + (1.0 - now) / 2)
    return expected(case, "prefix_cache_hit_ratio", ">=", least)
