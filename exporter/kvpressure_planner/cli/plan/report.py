"""A plan in words: the flags first, then how they were computed; and sessions, for `plan --sessions`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, NoReturn

import click

from kvpressure.capacity.arithmetic import Step, number, size
from kvpressure.capacity.parallel import Parallel
from kvpressure.cli.options import together
from kvpressure.cli.say import say, say_json
from kvpressure.runtimes.runtime import Planning, Runtime
from kvpressure_planner.capacity.capacity_plan import MemoryTarget, Plan
from kvpressure_planner.capacity.session_plan import TURNS, OnPool, SessionLoad, SessionPlan, plan_sessions

WIDTH = 110


def flags(
    plan: Plan, kv_cache_dtype: str, parallel: Parallel, planning: Planning, *, estimated: bool
) -> dict[str, str]:
    """Return the flags of the server's command, none when nothing fits; memory and ranks only where `estimated`."""
    if not plan.max_num_seqs:
        return {}
    given = {
        "max_num_seqs": str(plan.max_num_seqs),
        "max_model_len": str(plan.max_model_len),
        "max_num_batched_tokens": str(plan.max_num_batched_tokens),
    }
    if estimated:
        if plan.gpu_memory_utilization is not None:
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
    """Yield the lines of the report, those about sessions before the arithmetic."""
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
    """Yield a line per step: label, result, formula."""
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


ANSWER_TOKENS: Final = 300.0
"""Length of an answer without --output-p95."""
_UNITS: Final = {"ms": 0.001, "min": 60.0, "m": 60.0, "h": 3600.0, "s": 1.0}


def seconds(text: str) -> float:
    """Return the seconds of a time such as 20, 20s, 1.5m or 1h. Raises click.BadParameter."""
    given = text.strip().lower()
    unit = next((unit for unit in _UNITS if given.endswith(unit)), "")
    try:
        given_seconds = float(given.removesuffix(unit)) * _UNITS.get(unit, 1.0)
    except ValueError:
        given_seconds = -1.0
    if not 0.01 <= given_seconds <= 86_400:
        raise click.BadParameter(f"{text!r} is not a time such as 20s or 2m, of a day at most")
    return given_seconds


session_options: Final = together(
    click.option("--sessions", type=click.IntRange(1, 100_000), help="Chats or agents at a time that come back."),
    click.option("--context", type=click.FloatRange(16, 10_000_000), help="Tokens of a session's context on average."),
    click.option("--think", type=seconds, metavar="TIME", help="From an answer to the session's next turn, as 20s."),
    click.option(
        "--turns", type=click.IntRange(2, 10_000), default=TURNS, show_default=True, help="Turns of a session."
    ),
)


def sessions_of(options: Mapping[str, Any]) -> SessionLoad | None:
    """Return the sessions described, None without any. Raises click.UsageError where a part is missing."""
    given = {name: options[name] for name in ("sessions", "context", "think")}
    if all(value is None for value in given.values()):
        return None
    lacking = [f"--{name}" for name, value in given.items() if value is None]
    if lacking:
        raise click.UsageError(f"sessions are described by --sessions, --context and --think; missing: {lacking[0]}")
    answer = options["output_p95"] or ANSWER_TOKENS
    return SessionLoad(given["sessions"], given["context"], given["think"], answer, options["turns"])


def with_lengths(options: Mapping[str, Any], sessions: SessionLoad) -> dict[str, Any]:
    """Return the options with the longest context and the answer as lengths, where none are given or measured."""
    if options["url"] is not None:
        return dict(options)
    lengths = {"prompt_p95": sessions.longest_tokens, "output_p95": sessions.answer_tokens}
    return {**options, **{name: options[name] or value for name, value in lengths.items()}}


def planned(sessions: SessionLoad, plan: Plan | None) -> SessionPlan:
    """Return the plan for the sessions on the pool of a plan, or on none."""
    if plan is None:
        return plan_sessions(sessions, None, None)
    pool = round(plan.running_tokens)
    each = plan.pool_bytes / pool if plan.pool_bytes is not None and pool else None
    return plan_sessions(sessions, pool, each)


def session_report(plan: SessionPlan, pool_tokens: int | None, gpus: int | None = None) -> Iterator[str]:
    """Yield the lines about sessions; `pool_tokens` is the size of the given pool.

    With tensor-parallel size `gpus` the pool is large enough.
    """
    sessions, pool = plan.load, plan.on_pool
    bytes_ = "" if plan.working_set_bytes is None else f", {size(plan.working_set_bytes)} on each GPU"
    best = f"{plan.best_hit_ratio:.0%} of their prompts' tokens"
    grown = _rounded(sessions.longest_tokens)
    yield f"{number(sessions.count)} sessions that come back, with contexts that grow to {grown}"
    yield f"  working set     {_rounded(plan.working_set_tokens)} tokens{bytes_}"
    yield f"  could be found  {best}, if nothing were evicted"
    yield f"  cliff           {_rounded(plan.cliff_tokens)} tokens: a smaller pool finds less than half of that"
    if pool is not None:
        serves = "enough" if pool.serves else "too small"
        yield f"  this pool       {number(pool.pool_tokens)} tokens find {pool.hit_ratio:.0%}: {serves}"
    elif pool_tokens is not None:
        yield f"  this pool       {number(pool_tokens)} tokens do not hold one context to its end: too small"
    yield ""
    yield "What serves them, each by itself: it finds nine tenths of what could be found"
    yield f"  pool            {_rounded(plan.pool_tokens_needed)} tokens"
    if gpus is not None:
        yield f"  more GPUs       --tensor-parallel-size {gpus}"
    if pool is not None and not pool.serves:
        yield from _beside(pool)
    elif pool_tokens is None:
        yield "  replicas, host memory: give --model and --gpu, --kv-cache-tokens or --url"
    yield "  Simulated with steps of 30 ms, 16,000 prompt tokens a second, and think times up to five times the"
    yield "  shortest; `kvpressure whatif` starts from a running engine instead."


def sessions_alone(sessions: SessionLoad, *, as_json: bool) -> NoReturn:
    """Print what serves sessions on any engine, and exit."""
    plan = planned(sessions, None)
    if as_json:
        say_json({"sessions": asdict(plan)})
    else:
        say(*session_report(plan, None))
    sys.exit(0)


def _beside(pool: OnPool) -> Iterator[str]:
    if pool.replicas is not None:
        yield f"  replicas        {number(pool.replicas)}, each session always to the same one"
    if pool.sessions_per_replica is not None:
        yield f"  fewer sessions  at most {number(pool.sessions_per_replica)} on one replica"
    each = pool.offload_bytes
    tier = f"{_rounded(pool.offload_tokens)} tokens" if each is None else f"{size(each)} for each GPU"
    yield f"  host memory     {tier}, for contexts that are evicted"
    enough = "enough" if pool.hit_ratio_in_8_bits >= pool.enough_ratio else "not enough"
    yield f"  fp8 KV cache    finds {pool.hit_ratio_in_8_bits:.0%}, if it is in 16 now: {enough}"


def _rounded(tokens: float) -> str:
    """Return tokens rounded to two digits."""
    return number(float(f"{tokens:.2g}"))
