"""A plan in words: the flags first, then what they come from."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from kvpressure.capacity.arithmetic import Step, number
from kvpressure.capacity.capacity_plan import MemoryTarget, Plan
from kvpressure.capacity.parallel import Parallel
from kvpressure.runtimes.runtime import Planning, Runtime

WIDTH = 110


def flags(
    plan: Plan, kv_cache_dtype: str, parallel: Parallel, planning: Planning, *, estimated: bool
) -> dict[str, str]:
    """Return the flags of the server's command, none when nothing fits. An engine that runs keeps the memory it has."""
    if not plan.max_num_seqs:
        return {}
    given = {
        "max_num_seqs": str(plan.max_num_seqs),
        "max_model_len": str(plan.max_model_len),
        "max_num_batched_tokens": str(plan.max_num_batched_tokens),
    }
    if estimated:
        given["gpu_memory_utilization"] = f"{plan.gpu_memory_utilization:g}"
        ranks = {"tensor": parallel.tensor, "pipeline": parallel.pipeline, "data": parallel.data}
        given |= {f"{kind}_parallel": str(count) for kind, count in ranks.items() if count > 1}
        given |= {"expert_parallel": ""} if parallel.expert else {}
        if kv_cache_dtype != "auto":
            given["kv_cache_dtype"] = planning.cache_types.get(kv_cache_dtype, kv_cache_dtype)
    return {planning.flags[name]: value for name, value in given.items()}


def report(
    title: str, named: Mapping[str, str], plan: Plan, runtime: Runtime, sessions: Sequence[str] = ()
) -> Iterator[str]:
    """Return the lines of the whole answer, with those about sessions before the arithmetic."""
    yield from (title.rstrip(), "")
    if named:
        yield f"Flags of {runtime.planning.command}"
        yield "  " + " ".join(f"{name} {value}".rstrip() for name, value in named.items())
        prompt, output = number(plan.max_input_tokens), number(plan.max_output_tokens)
        yield from ("", "Limits at the gateway")
        yield f"  prompt at most {prompt} tokens, max_tokens at most {output}"
    else:
        yield "No flags: with this traffic not even one request fits"
    for warning in plan.warnings:
        yield from ("", *_wrapped(warning, "warning: "))
    if sessions:
        yield from ("", *sessions)
    yield from ("", "Arithmetic", *_table(plan.steps), "", "Trade-offs")
    yield from _trade_offs(plan, runtime)


def _table(steps: tuple[Step, ...]) -> Iterator[str]:
    """Label, result, formula: the result stands where the eye looks for it."""
    labels, results = max(len(step.label) for step in steps), max(len(step.result) for step in steps)
    for step in steps:
        yield f"  {step.label:<{labels}}  {step.result:>{results}}  = {step.formula}".rstrip()


def _trade_offs(plan: Plan, runtime: Runtime) -> Iterator[str]:
    yield from _wrapped(
        "fewer sequences or shorter requests wait longer in the queue but are not preempted; more than this fit only "
        "while requests stay below p95.",
        "  max_num_seqs: ",
    )
    yield from _wrapped(
        "more of them bring the first token sooner and take memory from the pool; fewer keep the time between tokens "
        f"even. {runtime.planning.step_default}",
        "  max_num_batched_tokens: ",
    )
    yield from _wrapped(_memory_words(plan.memory_target, runtime), "  gpu_memory_utilization: ")


def _memory_words(target: MemoryTarget | None, runtime: Runtime) -> str:
    against = "lowering it shrinks the pool: it helps against a device OOM and makes KV cache pressure worse."
    if target is None:
        return f"it is at or below the target against a device OOM already; {against}"
    words = f"{against} After a device OOM go to {target.utilization:g} ({target.why})"
    if target.pool_tokens is None or target.max_num_seqs is None:
        log = f"{runtime.title}'s log ({runtime.planning.pool_log})"
        return f"{words}; what is left of the pool then shows in {log}. Plan again with that."
    if not target.max_num_seqs:
        return (
            f"{against} Not here: at {target.utilization:g} ({target.why}) not even one p95 request fits. After a "
            "device OOM halve the batched tokens instead, or take more GPUs."
        )
    return (
        f"{words} together with {runtime.planning.flags['max_num_seqs']} {target.max_num_seqs}: the pool then holds "
        f"{number(target.pool_tokens)} tokens."
    )


def _wrapped(text: str, lead: str) -> list[str]:
    indent = " " * (len(lead) - len(lead.lstrip()) + 2)
    return textwrap.wrap(lead + text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
