"""The memory target, which is against a device OOM and against nothing else."""

from __future__ import annotations

from typing import Final

from kvpressure.audit import fixes
from kvpressure.audit.checks.context import Context, is_long, number, traffic
from kvpressure.audit.engine import Engine
from kvpressure.audit.model import Verdict

_LIMIT: Final = "gpu_memory_utilization"
_AGAINST: Final = "against a device OOM; if the KV cache is what runs out, do not lower it"


def target(engine: Engine, context: Context) -> Verdict:
    """At most 0.7, at most 0.6 for long contexts or bursts; undeclared it is the default, which is above both."""
    place = engine.limit_place(_LIMIT)
    sizes_pool = engine.runtime.starting.flags.sizes_pool
    if sizes_pool in engine.reading.options:
        reason = f"--{sizes_pool} sets the KV cache; what share of the GPU that is depends on the GPU"
        return Verdict("unknown", reason, engine.option_place(sizes_pool))
    limit = engine.reading.limits.get(_LIMIT)
    bound, why = _bound(engine, context)
    fix = fixes.limit(engine, _LIMIT, number(bound), _AGAINST)
    if limit is None:
        return _undeclared(engine, f"{number(bound)}{why}", fix)
    shown = number(limit.value)
    if limit.value > bound:
        return Verdict("fail", f"{shown} is above {number(bound)}{why}, the target {_AGAINST}", place, fix)
    lowest = context.thresholds.advice_memory_target_long_context_ratio
    if limit.value > lowest and is_long(engine, context.thresholds) is None:
        reason = f"{shown} is enough for short prompts and above {number(lowest)} for long ones; no limit says which"
        return Verdict("unknown", reason, place)
    return Verdict("pass", f"{shown} is at most {number(bound)}{why}", place)


def _bound(engine: Engine, context: Context) -> tuple[float, str]:
    thresholds = context.thresholds
    if "bursty" in traffic(engine):
        return thresholds.advice_memory_target_long_context_ratio, " for bursts"
    if is_long(engine, thresholds):
        return thresholds.advice_memory_target_long_context_ratio, " for long prompts"
    return thresholds.advice_memory_target_ratio, ""


def _undeclared(engine: Engine, bound: str, fix: str) -> Verdict:
    place, reading = engine.limit_place(_LIMIT), engine.reading
    if _LIMIT in reading.unclear:
        return Verdict("unknown", reading.unclear[_LIMIT], place)
    if reading.hidden:
        return Verdict("unknown", f"not found, but {reading.hidden[0]}", place)
    reason = f"not declared: {engine.runtime.audit.undeclared[_LIMIT]}, above {bound}, the target {_AGAINST}"
    return Verdict("fail", reason, place, fix)
