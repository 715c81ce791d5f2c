"""Limits on a batch: how many sequences, and how many tokens in one step."""

from __future__ import annotations

from typing import Final

from kvpressure.audit import fixes
from kvpressure.audit.checks.context import Context, number, undeclared
from kvpressure.audit.engine import Engine
from kvpressure.audit.model import Verdict

LARGEST_DEFAULT: Final = 1024
"""What vLLM takes for max_num_seqs on large GPUs (256 elsewhere)."""

_OPTION: Final = "max-num-seqs"
_FIX: Final = "vLLM's default on most GPUs; kvpressure plan computes what fits"


def declared(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """`--max-num-seqs` is given with a value."""
    limit = engine.reading.limits.get("max_num_seqs")
    if limit is not None:
        return Verdict("pass", f"{number(limit.value)} sequences", engine.option_place(_OPTION))
    reason = "not declared: vLLM takes 256, or 1,024 on large GPUs, whatever fits into the KV cache"
    return undeclared(engine, "max_num_seqs", _OPTION, reason, fixes.flag(engine, "--max-num-seqs", "256", _FIX))


def plausible(engine: Engine, context: Context) -> Verdict:
    """At most what vLLM itself would ever take, what the token budget and the KV cache allow; at least a batch."""
    limits = engine.reading.limits
    limit = limits.get("max_num_seqs")
    if limit is None:
        return Verdict("unknown", "max_num_seqs is not known", engine.option_place(_OPTION))
    place, fix = engine.option_place(_OPTION), fixes.flag(engine, "--max-num-seqs", "256", _FIX)
    batched, pool = limits.get("max_num_batched_tokens"), limits.get("kv_capacity_tokens")
    count = number(limit.value)
    if batched is not None and limit.value > batched.value:
        reason = f"{count} is above max_num_batched_tokens ({number(batched.value)}): vLLM refuses to start"
        return Verdict("fail", reason, place, fixes.flag(engine, "--max-num-seqs", f"{batched.value:.0f}"))
    if limit.value > LARGEST_DEFAULT:
        reason = f"{count} is above vLLM's largest default ({number(LARGEST_DEFAULT)}): the KV cache is the limit then"
        return Verdict("fail", reason, place, fix)
    if limit.value <= context.thresholds.batch_collapse_max_sequences:
        return Verdict("fail", f"{count} leaves nothing to batch", place, fix)
    if pool is not None and limit.value > pool.value:
        reason = f"{count} sequences do not find a token each in a KV cache of {number(pool.value)}"
        return Verdict("fail", reason, place, fix)
    return Verdict("pass", f"{count} is between a batch and vLLM's largest default", place)


def batched_tokens(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """`--max-num-batched-tokens` is given with a value."""
    limit = engine.reading.limits.get("max_num_batched_tokens")
    if limit is not None:
        return Verdict("pass", f"{number(limit.value)} tokens a step", engine.option_place("max-num-batched-tokens"))
    reason = "not declared: vLLM takes 2,048 to 16,384, by version and GPU"
    fix = fixes.flag(engine, "--max-num-batched-tokens", "8192")
    return undeclared(engine, "max_num_batched_tokens", "max-num-batched-tokens", reason, fix)
