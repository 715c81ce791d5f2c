"""Limits on a batch: how many sequences, and how many tokens in one step."""

from __future__ import annotations

from typing import Final

from kvpressure.audit import fixes
from kvpressure.audit.checks.context import Context, number, undeclared
from kvpressure.audit.engine import Engine
from kvpressure.audit.model import Verdict

_LIMIT: Final = "max_num_seqs"
_STEP: Final = "max_num_batched_tokens"


def declared(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """How many sequences run at once is given with a value."""
    limit = engine.reading.limits.get(_LIMIT)
    if limit is not None:
        return Verdict("pass", f"{number(limit.value)} sequences", engine.limit_place(_LIMIT))
    return undeclared(engine, _LIMIT, f"not declared: {engine.runtime.audit.undeclared[_LIMIT]}", _fix(engine))


def _fix(engine: Engine) -> str:
    return fixes.limit(engine, _LIMIT, *engine.runtime.audit.sequences)


def plausible(engine: Engine, context: Context) -> Verdict:
    """At most what the server itself would take, what the token budget and the KV cache allow; at least a batch."""
    limits = engine.reading.limits
    limit = limits.get(_LIMIT)
    if limit is None:
        return Verdict("unknown", "max_num_seqs is not known", engine.limit_place(_LIMIT))
    place, fix = engine.limit_place(_LIMIT), _fix(engine)
    batched, pool = limits.get(_STEP), limits.get("kv_capacity_tokens")
    count, title, largest = number(limit.value), engine.runtime.title, engine.runtime.audit.largest_sequences
    if engine.runtime.audit.needs_step and batched is not None and limit.value > batched.value:
        reason = f"{count} is above max_num_batched_tokens ({number(batched.value)}): {title} refuses to start"
        return Verdict("fail", reason, place, fixes.limit(engine, _LIMIT, f"{batched.value:.0f}"))
    if largest is not None and limit.value > largest:
        reason = f"{count} is above {title}'s largest default ({number(largest)}): the KV cache is the limit then"
        return Verdict("fail", reason, place, fix)
    if limit.value <= context.thresholds.batch_collapse_max_sequences:
        return Verdict("fail", f"{count} leaves nothing to batch", place, fix)
    if pool is not None and limit.value > pool.value:
        reason = f"{count} sequences do not find a token each in a KV cache of {number(pool.value)}"
        return Verdict("fail", reason, place, fix)
    return Verdict("pass", f"{count} is between a batch and {_most(engine)}", place)


def _most(engine: Engine) -> str:
    return (
        f"{engine.runtime.title}'s largest default" if engine.runtime.audit.largest_sequences else "any that is known"
    )


def batched_tokens(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """How many tokens a step has is given with a value."""
    limit = engine.reading.limits.get(_STEP)
    if limit is not None:
        return Verdict("pass", f"{number(limit.value)} tokens a step", engine.limit_place(_STEP))
    fix = fixes.limit(engine, _STEP, engine.runtime.audit.step_tokens)
    return undeclared(engine, _STEP, f"not declared: {engine.runtime.audit.undeclared[_STEP]}", fix)
