"""What the pool keeps: values in 8 bits, KV in host memory, blocks for reuse, room for requests that grow."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvpressure.advice.case import Case
from kvpressure.advice.rollout import after_restart, changed, expected, no_longer, unpreempted
from kvpressure.advice.shell import apply_flags
from kvpressure.model.action import Action
from kvpressure.model.limits import KV_DTYPE
from kvpressure.model.values import at, number
from kvpressure.simulation.config_changes import OFFLOAD, PREFIX_CACHING
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import Step


def small_kv(case: Case, model: Model, step: Step) -> Action:
    """Return the change to a KV cache in 8 bits that holds more requests, as predicted."""
    action = _small_kv(case, case.capacity or model.known.server.pool_tokens, "holds")
    return replace(
        action,
        cost="Some accuracy: evaluate answers before users see them. Needs a GPU and an attention backend that take "
        "it; where they do not, the server ends at start and says so.",
        commands=apply_flags(case.place, case.own.flags.set(KV_DTYPE, case.own.flags.small_kv)),
        expected=step.expected,
    )


def small_kv_for_contexts(case: Case, check: str) -> Action | None:
    """Return the change to 8 bits that keeps more contexts; None where that is no help, or the pool is unknown."""
    if not case.small_kv_helps or case.capacity is None:
        return None
    flags = case.own.flags.set(KV_DTYPE, case.own.flags.small_kv)
    action = _small_kv(case, case.capacity, "keeps")
    return replace(
        action,
        cost="A restart empties the cache. Some accuracy: evaluate answers before users see them.",
        checks=(*action.checks, check),
        commands=apply_flags(case.place, flags),
        flags=flags,
    )


def _small_kv(case: Case, pool: float, does: str) -> Action:
    both = " Prefill and decode engines need the same." if case.role else ""
    return Action(
        key=KV_DTYPE,
        title="Use an fp8 KV cache",
        current="not visible (as the model's weights unless set)",
        new=case.own.flags.small_kv,
        why=f"The same memory {does} twice as much: about {number(round(2 * pool))} tokens instead of "
        f"{number(round(pool))}. Leave it out if the cache is fp8 already.{both}",
        checks=("After the restart:", expected(case, "kv_capacity_tokens", ">=", 1.9 * pool)),
    )


def tier(case: Case, _: Model, step: Step) -> Action:
    """Return the action that keeps the KV of preempted requests in host memory."""
    size = number(step.change.value)
    return Action(
        key=OFFLOAD,
        title="Keep preempted KV in host memory",
        current="not visible (none unless set)",
        new=f"{size} GiB for each GPU of a replica",
        why="Preempted requests are loaded again instead of recomputed. How long that takes depends on the "
        "way between host and GPU, which the page does not say.",
        cost=f"{size} GiB of host memory for each GPU, beside what the server has. With several GPUs the flag takes "
        "their sum. Leave it out where another connector is configured.",
        checks=after_restart(case),
        flags=case.own.flags.set(OFFLOAD, size),
        expected=step.expected,
    )


def tier_for_contexts(case: Case, check: str) -> Action | None:
    """Return the action that keeps evicted contexts in host memory; None where the runtime cannot."""
    name = case.own.flags.limits.get(OFFLOAD)
    if name is None:
        return None
    hit_ratio = at(case.derived, "offload_hit_ratio")
    has = "" if hit_ratio is None else f" The tier there is had {hit_ratio:.0%} of what was looked up."
    return Action(
        key=OFFLOAD,
        title="Keep evicted contexts in the host's memory" if hit_ratio is None else "Make the offload tier larger",
        why=f"{name} in GiB. Loading a context from there is mostly faster than computing it.{has}",
        cost="That much memory of the host, and a restart, which empties the cache.",
        checks=("After the restart:", check),
    )


def caching(case: Case, _: Model, step: Step) -> Action:
    """Return the action that switches prefix caching on."""
    return Action(
        key=PREFIX_CACHING,
        title="Switch prefix caching on",
        current="off (page)",
        new="on",
        why="A preempted request finds what is left of its KV, and need not recompute it. What "
        "prompts share comes on top: with caching off the page does not say how much that is.",
        cost="Hardly any: hashing of prompts. Answers' first tokens may show who asked the same before.",
        checks=after_restart(case),
        flags=case.own.flags.set(PREFIX_CACHING, ""),
        expected=step.expected,
    )


def watermark(case: Case, _: Model, step: Step) -> Action:
    """Return the action that keeps a part of the pool free of new requests."""
    ratio = number(step.change.value)
    return Action(
        key="watermark",
        title="Keep a part of the pool for those that run",
        current="not visible (0 unless set)",
        new=ratio,
        why="Admitted requests grow and preempt each other; some room kept free for that growth makes it rarer.",
        cost="Requests are admitted a little later. Recent versions only: leave it out if the server does not know it.",
        checks=("Within 2 minutes of the restart:", unpreempted(case)),
        flags=case.own.flags.set("watermark", ratio),
        expected=step.expected,
    )


def more_reserve(case: Case) -> Action | None:
    """Return the change that keeps admitted requests in the batch; None without preemptions, or without such a flag."""
    if case.own.remedies.reserve is None or case.symptom("preempting") is not True:
        return None
    return changed(case.own.remedies.reserve, ("Within 2 minutes of the restart:", unpreempted(case)))


def less_reserve(case: Case) -> Action | None:
    """Return the change that admits requests with less kept free for answers; None without such a flag."""
    remedy = case.own.remedies.less_reserve
    return None if remedy is None else changed(remedy, after_restart(case))


_EVENTS: Final = (
    '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'
)
_READ: Final = (
    "After the restart, with `kv_events: {replay_port: 5558}` at the engine in kvpressure's settings: "
    "kvpressure_kv_capacity_miss_tokens_total is there."
)


def measure_evictions(case: Case) -> Action | None:
    """Return the flags by which the engine reports what it evicts; None where its KV events are read, or has none."""
    flag, timing = case.own.flags.limits.get("kv_events"), case.own.flags.limits.get("kv_cache_metrics")
    if flag is None or "kv_capacity_miss_tokens_total" in case.derived:
        return None
    timed = timing is None or "cache_eviction_age_seconds" in case.derived
    also = "" if timed else f" {timing} alone times one block in a hundred: the age at eviction."
    return Action(
        key="measure",
        title="Let the engine publish its KV events",
        why="They report each block that is evicted and computed again, whatever the engine did before, and the hits "
        f"of pools of 1.25 to 8 times the size.{also}",
        cost="Token ids are in the events: let only kvpressure reach these ports. Less than 1 MB/s on the network, and "
        "up to 3 % of a core and 32 MiB in the exporter, which keeps no token ids.",
        checks=(_READ,),
        commands=(f"# {flag} '{_EVENTS}'",),
    )


def larger_other_pool(case: Case) -> tuple[list[Action | None], str]:
    """Return the action on a full pool beside that of tokens: it has a size, and flags, of its own."""
    return [
        Action(
            key="other_pool",
            title="Enlarge the pool that is full: states (Mamba) or sliding windows",
            new=case.own.words.other_pools,
            why="Each request takes a place in that pool, however short it is. The pool of tokens has room, so that "
            "caps on tokens, a smaller reserve and a smaller element of the KV cache change nothing.",
            cost="What one pool gains of the memory, the other loses; a restart.",
            checks=no_longer(case, "kv_cache_pressure", "2 minutes of traffic"),
        )
    ], "pools beside that of tokens are not simulated"
