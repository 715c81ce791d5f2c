"""The memory target: down against a device OOM, never down against a pool that is too small."""

from __future__ import annotations

from kvpressure.advice.case import Case
from kvpressure.advice.rollout import gone
from kvpressure.advice.shell import past_failures
from kvpressure.model.action import Action
from kvpressure.model.values import at, number

LIMIT = "gpu_memory_utilization"


def memory_headroom(case: Case) -> Action:
    """Name the failure that is treated, and move the target accordingly, or say why it stays."""
    if case.device_oom:
        return _after_oom(case)
    return leave_memory(case) if case.memory_target is None else _raise(case, case.memory_target)


def _after_oom(case: Case) -> Action:
    limit = case.limits.gpu_memory_utilization
    target = case.memory_target
    usual = case.thresholds
    if target is None and limit is not None and limit.value > usual.advice.memory_target_ratio:
        return _needed(case, limit.value)
    if target is None:
        return Action(
            key="memory_headroom",
            title="Leave the memory target: a device OOM, but the target is low already",
            current=str(limit),
            why="The GPU ran out of memory although the target leaves room. Activations of large batches, or another "
            f"process on the GPU, took it: cutting {case.own.words.limits['max_num_batched_tokens']} treats the first, "
            "nvidia-smi shows the other.",
            commands=("nvidia-smi",),
        )
    reason = case.long_or_bursty or "prompts are not long and do not come in bursts"
    if target == case.lowest_target:
        reason = "less would not hold one longest request"
    return Action(
        key="memory_headroom",
        title="Lower the memory target: this failure is a device OOM",
        current=case.shown(LIMIT),
        new=number(target),
        why=f"The GPU itself ran out of memory, outside the KV pool, whose size is fixed. {number(target)} leaves the "
        f"rest to activations; {reason}.",
        cost=_price(case, target) + case.own.words.too_little,
        checks=_no_more_ooms(case),
        flags=case.own.flags.set(LIMIT, number(target)),
    )


def _needed(case: Case, share: float) -> Action:
    """Return the action that keeps the target: with a lower one the server would not start."""
    longest = case.limits.max_model_len
    words = case.own.words.limits
    tokens = "" if longest is None else f" of {number(longest.value)} tokens"
    return Action(
        key="memory_headroom",
        title="Leave the memory target: with a lower one the server would not start",
        current=number(share),
        why=f"The GPU ran out of memory, but below about {number(case.lowest_target or share)} the pool would not hold "
        f"one longest request{tokens}. Lower {words['max_model_len']} first, or cut {words['max_num_batched_tokens']}: "
        "smaller steps leave more to the device.",
        commands=("nvidia-smi",),
    )


def _price(case: Case, target: float) -> str:
    lost = case.pool_change(target)
    if lost is None:
        return "The KV pool shrinks, so fewer requests fit at once."
    room = "" if case.room is None else f"; {number(max(1, case.room))} requests fit at p95 length"
    return f"The KV pool loses at least {number(round(lost))} of its {number(case.capacity or 0)} tokens{room}."


def leave_memory(case: Case) -> Action:
    """Say why the target stays."""
    return Action(
        key="memory_headroom",
        title=f"Leave {case.own.words.limits[LIMIT]}: "
        + ("a gateway holds requests back" if case.at_gateway else "the pool is exhausted, the device is not"),
        current=case.shown(LIMIT),
        why=f"{_full(case)}; that is not a device OOM, {_evidence(case)}. "
        f"{_loss(case, case.thresholds.advice.memory_target_ratio)}",
        cost=f"None. For a larger pool: {case.own.words.larger_pool}",
        commands=() if case.symptom("device_oom") is False else past_failures(case.place),
    )


def _raise(case: Case, target: float) -> Action:
    used, gain = at(case.derived, "engine_gpu_memory_used_ratio") or 0.0, case.pool_change(target)
    gained = f"at least {number(round(gain))} tokens" if gain else "tokens"
    return Action(
        key="memory_headroom",
        title="Raise the memory target: the pool is exhausted, and the device has room",
        current=case.shown(LIMIT),
        new=number(target),
        why=f"{_full(case)}; that is not a device OOM, {_evidence(case)}. The device is at {used:.0%}, so the "
        f"pool can gain {gained}.",
        cost="Less room for activations: go back if the server ends with CUDA (HIP) out of memory.",
        checks=_no_more_ooms(case),
        commands=() if case.symptom("device_oom") is False else past_failures(case.place),
        flags=case.own.flags.set(LIMIT, number(target)),
    )


def _full(case: Case) -> str:
    return "The KV pool is used up to what the gateway allows" if case.at_gateway else "The KV pool ran full"


def _evidence(case: Case) -> str:
    if case.symptom("device_oom") is False:
        return "and the logs have none"
    return "though logs were not read here: look for one first (below), because it would turn this advice around"


def _loss(case: Case, target: float) -> str:
    limit, lost = case.limits.gpu_memory_utilization, case.pool_change(target)
    if limit is None or lost is None or limit.value <= target:
        return "Lowering the target would shrink the pool and make this worse."
    return (
        f"Lowering the target to {number(target)} would take at least {number(round(lost))} of the pool's "
        f"{number(case.capacity or 0)} tokens and make this worse."
    )


def _no_more_ooms(case: Case) -> tuple[str, ...]:
    return ("For 30 minutes under traffic:", gone(case, "device_oom"))
