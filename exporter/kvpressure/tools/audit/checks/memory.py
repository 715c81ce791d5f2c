"""The share of the GPU: enough for weights and one longest request, and not so much that nothing else finds room."""

from __future__ import annotations

from typing import Final

from kvpressure.capacity.arithmetic import size
from kvpressure.tools.audit import fixes
from kvpressure.tools.audit.checks.context import Context, number, unseen
from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.model import Verdict
from kvpressure.tools.audit.sizing import Sized

_LIMIT: Final = "gpu_memory_utilization"


def target(engine: Engine, context: Context) -> Verdict:
    """Check that the server starts with it, and that it is not above the largest that is safe.

    What is not declared is the default.
    """
    place, flags = engine.limit_place(_LIMIT), engine.runtime.starting.flags
    if flags.sizes_pool in engine.reading.options:
        reason = f"--{flags.sizes_pool} sets the KV cache; what share of the GPU that is depends on the GPU"
        return Verdict("unknown", reason, engine.option_place(flags.sizes_pool))
    if why := engine.reading.unclear.get(flags.sizes_pool):
        return Verdict("unknown", why, place)
    if (verdict := unseen(engine, _LIMIT)) is not None:
        return verdict
    limit, default = engine.reading.limits.get(_LIMIT), engine.runtime.planning.memory_share
    share = default if limit is None else limit.value
    shown = f"not declared: {engine.runtime.audit.undeclared[_LIMIT]}" if limit is None else number(share)
    sized, most = context.sized(engine), context.thresholds.advice_memory_target_max_ratio
    if share > most:
        reason = f"{shown} is above {number(most)}: what is needed beside weights and KV cache may not find room"
        return Verdict("fail", reason, place, _share(engine, sized, default))
    if isinstance(sized, str):
        return Verdict("pass", f"{shown}, at most {number(most)}", place)
    return _measured(engine, sized, shown)


def _measured(engine: Engine, sized: Sized, shown: str) -> Verdict:
    place, default = engine.limit_place(_LIMIT), engine.runtime.planning.memory_share
    if sized.refused:
        return Verdict("fail", sized.refused[0], place)
    if sized.starts():
        return Verdict("pass", f"{shown}: {_room(sized)}", place)
    reason = f"{shown}: {engine.runtime.title} would not start, {_missing(sized)}"
    fix = _share(engine, sized, default) or _shorter(engine, sized) or _gpus(engine, sized)
    return Verdict("fail", reason, place, fix)


def _room(sized: Sized) -> str:
    pool = sized.pool()
    fits, longest = pool.fit(sized.longest, 1.0), number(sized.longest)
    plural = "" if fits == 1 else "s"
    return (
        f"beside weights of {size(sized.weights_bytes)} the {sized.gpu.name} holds {number(fits)} longest "
        f"request{plural} ({longest} tokens)"
    )


def _missing(sized: Sized) -> str:
    each, pool = sized.pool().cost.request_bytes(sized.longest), sized.pool().size_bytes
    usable = sized.memory.smallest_gpu_bytes * sized.memory.gpu_memory_utilization
    return (
        f"weights take {size(sized.weights_bytes)} of {size(usable)} on the {sized.gpu.name}, leaving {size(pool)} "
        f"to the KV cache; one longest request ({number(sized.longest)} tokens) needs {size(each)}"
    )


def _share(engine: Engine, sized: Sized | str, share: float) -> str:
    """Return the default share, where the server starts with it and it is another than in force."""
    if isinstance(sized, str) or share == sized.memory.gpu_memory_utilization or not sized.starts_at(share):
        return ""
    return fixes.limit(engine, _LIMIT, number(share), "weights and one longest request fit")


def _shorter(engine: Engine, sized: Sized) -> str:
    """Shorter requests, where those that come are."""
    if sized.plan is None or not sized.plan.max_num_seqs:
        return ""
    return fixes.limit(engine, "max_model_len", str(sized.plan.max_model_len), sized.command)


def _gpus(engine: Engine, sized: Sized) -> str:
    """More GPUs, where a usual number of them is enough."""
    needs, flags = sized.needs, engine.runtime.starting.flags.sizing
    if needs is None:
        return ""
    why = f"{needs.gpus} {sized.gpu.name} for each replica, in resources too; {sized.command}"
    lines = [fixes.flag(engine, flags.tensor, str(needs.tensor), why)]
    lines += [fixes.flag(engine, flags.pipeline, str(needs.pipeline), why)] if needs.pipeline > 1 else []
    return "\n".join(lines)
