"""Limits on a batch: how many sequences, and how many tokens in one step."""

from __future__ import annotations

from typing import Final

from kvpressure.capacity.capacity_plan import Plan
from kvpressure.tools.audit.checks.context import Context, limit_fix, number, unseen
from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.model import Verdict
from kvpressure.tools.audit.sizing import OUTPUT, PROMPT, Sized, sequences_in_force, traffic_of

_LIMIT: Final = "max_num_seqs"
_STEP: Final = "max_num_batched_tokens"


def declared(engine: Engine, context: Context) -> Verdict:
    """As many sequences as find room in the KV cache, and at least a batch; undeclared is the server's default."""
    found = _fitting(engine, context)
    return found if found.status == "fail" else _implausible(engine, context) or found


def _fitting(engine: Engine, context: Context) -> Verdict:
    """By the room in the KV cache."""
    if (verdict := unseen(engine, _LIMIT)) is not None:
        return verdict
    place, limit, sized = engine.limit_place(_LIMIT), engine.reading.limits.get(_LIMIT), context.sized(engine)
    count = None if isinstance(sized, str) else sequences_in_force(engine, sized)
    default = f": {engine.runtime.audit.undeclared[_LIMIT]}" if count is None else f", so {number(count)}"
    shown = f"not declared{default}" if limit is None else number(limit.value)
    if limit is not None and _refused(engine):
        return Verdict("unknown", f"{shown}: the server would not start", place)
    if not isinstance(sized, str) and count is not None and not sized.refused:
        share = context.thresholds.advice_request_share_max_ratio
        return _measured(engine, sized, (count, shown), share)
    if limit is None or limit.value in engine.runtime.audit.defaults[_LIMIT]:
        whose = "" if limit is None else f", a default of {engine.runtime.title}"
        why = sized if isinstance(sized, str) else sized.refused[0] if sized.refused else "the default is not known"
        return Verdict("unknown", f"{shown}{whose}: whether they fit the KV cache is not known, {why}", place)
    return Verdict("pass", f"{number(limit.value)} sequences", place)


def _measured(engine: Engine, sized: Sized, in_force: tuple[int, str], share: float) -> Verdict:
    """By memory alone, where no lengths are annotated: `share` of the longest is short for a request.

    `in_force` is the number of sequences, and how it is written.
    """
    place, (count, shown) = engine.limit_place(_LIMIT), in_force
    if sized.plan is not None and sized.plan.max_num_seqs:
        return _planned(engine, sized, sized.plan, in_force)
    fits = sized.pool().fit(sized.longest, 1.0)
    if not fits:
        return Verdict("unknown", f"{shown}; the server would not start (memory-target)", place)
    if count <= fits:
        return Verdict("pass", f"{shown}: {number(fits)} fit the KV cache at their longest", place)
    if engine.reading.limits.get(_LIMIT) is None or count in engine.runtime.audit.defaults[_LIMIT]:
        reason = f"{shown}: {number(fits)} fit at their longest; how long they are is not known ({PROMPT}, {OUTPUT})"
        return Verdict("unknown", reason, place)
    found = f"{number(fits)} fit the KV cache at their longest"
    most = sized.pool().fit(max(1, int(sized.longest * share)), 1.0)
    if count > most:
        reason = f"{shown}: only {found}, {number(most)} at {share:.0%} of it; are they shorter? ({PROMPT}, {OUTPUT})"
        return Verdict("fail", reason, place, limit_fix(engine, _LIMIT, str(most), sized.command))
    return Verdict("pass", f"{shown} sequences; {found}", place)


def _planned(engine: Engine, sized: Sized, plan: Plan, in_force: tuple[int, str]) -> Verdict:
    """By the lengths that are annotated; `in_force` is the number of sequences, and how it is written."""
    place, (count, shown), fits = engine.limit_place(_LIMIT), in_force, plan.max_num_seqs
    found = f"{number(fits)} of {number(plan.tokens_per_request)} tokens fit the KV cache"
    if count <= fits:
        return Verdict("pass", f"{shown}: {found}", place)
    if fits == engine.runtime.audit.largest_sequences:
        return Verdict("unknown", f"{shown}: {found}, and more are never planned", place)
    fix = limit_fix(engine, _LIMIT, str(fits), sized.command)
    return Verdict("fail", f"{shown}: only {found}, the others are preempted", place, fix)


def _implausible(engine: Engine, context: Context) -> Verdict | None:
    """Return what is wrong with a number whatever the memory: more than the server, a step or the given pool takes."""
    limits = engine.reading.limits
    limit = limits.get(_LIMIT)
    if limit is None:
        return None
    place, fix = engine.limit_place(_LIMIT), _fix(engine, context)
    batched, pool = limits.get(_STEP), limits.get("kv_capacity_tokens")
    count, title, largest = number(limit.value), engine.runtime.title, engine.runtime.audit.largest_sequences
    if batched is not None and _refused(engine):
        reason = f"{count} is above max_num_batched_tokens ({number(batched.value)}): {title} refuses to start"
    elif largest is not None and limit.value > largest:
        reason = f"{count} is above {title}'s largest default ({number(largest)}): the KV cache is the limit then"
    elif limit.value <= context.thresholds.batch_collapse_max_sequences:
        reason = f"{count} leaves nothing to batch"
    elif pool is not None and limit.value * (tokens := _least_tokens(engine, context)) > pool.value:
        fits = number(pool.value // tokens)
        reason = f"{count}: only {fits} of {number(tokens)} tokens fit a KV cache of {number(pool.value)}"
    else:
        return None
    return Verdict("fail", reason, place, fix)


def _least_tokens(engine: Engine, context: Context) -> int:
    """Return the tokens of a request as annotated, else the share of the longest that is short for one, at least 1."""
    longest, traffic = engine.reading.limits.get("max_model_len"), traffic_of(engine)
    if traffic is not None:
        return int(traffic.prompt_p95 + traffic.output_p95)
    return max(1, int(longest.value * context.thresholds.advice_request_share_max_ratio)) if longest else 1


def _refused(engine: Engine) -> bool:
    """Whether there are more sequences than tokens in a step, which the server refuses."""
    count, step = (engine.reading.limits.get(name) for name in (_LIMIT, _STEP))
    return engine.runtime.audit.needs_step and count is not None and step is not None and count.value > step.value


def _fix(engine: Engine, context: Context) -> str:
    """Return what a plan would set; "" where it cannot be computed."""
    sized, least = context.sized(engine), context.thresholds.batch_collapse_max_sequences
    if isinstance(sized, str) or sized.plan is None or sized.plan.max_num_seqs <= least:
        return ""
    return limit_fix(engine, _LIMIT, str(sized.plan.max_num_seqs), sized.command)


def batched_tokens(engine: Engine, context: Context) -> Verdict:
    """Not more tokens in a step than the server itself would take; what is not declared is that."""
    if (verdict := unseen(engine, _STEP)) is not None:
        return verdict
    place, limit = engine.limit_place(_STEP), engine.reading.limits.get(_STEP)
    most = engine.runtime.audit.defaults[_STEP][-1]
    if limit is None:
        return Verdict("pass", f"not declared: {engine.runtime.audit.undeclared[_STEP]}", place)
    shown = number(limit.value)
    if limit.value <= most:
        return Verdict("pass", f"{shown} tokens a step", place)
    sized = context.sized(engine)
    planned = most if isinstance(sized, str) or sized.plan is None else sized.plan.max_num_batched_tokens
    reason = (
        f"{shown} is above {number(most)}, the most that {engine.runtime.title} takes by itself: a step's memory comes "
        "out of the KV cache"
    )
    tokens = min(most, planned)
    sequences = engine.reading.limits.get(_LIMIT)
    # Fewer tokens in a step leave more to the pool: what starts now still does, but for more sequences than tokens.
    fits = sequences is None or sequences.value <= tokens
    fix = limit_fix(engine, _STEP, str(tokens), "the memory of the steps goes to the KV cache") if fits else ""
    return Verdict("fail", reason, place, fix)
