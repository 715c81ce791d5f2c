"""Safe limits from memory, model and traffic: what fits into the KV pool, and the arithmetic behind every number.

The pool is what a running engine says it has, or what its GPUs and model will leave for it. A plan never exceeds it:
`max_num_seqs` requests of p95 length fit at the same time, with a margin kept free.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from kvpressure.capacity import parallel
from kvpressure.capacity.arithmetic import Step, number, size
from kvpressure.capacity.geometry import Geometry, KvCost
from kvpressure.capacity.memory import Memory
from kvpressure.capacity.parallel import Parallel, RefusedError
from kvpressure.capacity.pool import BytePool, Pool, TokenPool, pool_from_memory, whole_blocks
from kvpressure.config.thresholds import Thresholds
from kvpressure.runtimes.registry import ASSUMED
from kvpressure.runtimes.runtime import Planning, Runtime
from kvpressure_planner.capacity.case import Case, PlannedTraffic, longest_request, warnings_for

_MAX_TENSOR_PARALLEL: Final = 16
_MAX_PIPELINE: Final = 16


@dataclass(frozen=True, slots=True)
class MemoryTarget:
    """`gpu_memory_utilization` against a device OOM, and what it would leave; None where that is not known."""

    utilization: float
    why: str
    pool_tokens: int | None = None
    max_num_seqs: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Limits that fit together; tokens per request are prompt and output, in whole blocks.

    `pool_tokens` are those that the server's log says; `running_tokens` what p95 requests hold together, which is more
    where layers have windows: the log counts a step's tokens in each request's.

    `max_num_seqs` is 0 when not even one p95 request fits, and the token limits are 0 when no request fits at all.
    `memory_target` is None when the utilization is at the target already.
    """

    max_num_seqs: int
    max_model_len: int
    max_input_tokens: int
    max_output_tokens: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float | None
    pool_tokens: int
    running_tokens: float
    pool_bytes: float | None
    tokens_per_request: int
    bytes_per_request: float | None
    memory_target: MemoryTarget | None
    steps: tuple[Step, ...]
    warnings: tuple[str, ...]


def plan_model(
    geometry: Geometry,
    cost: KvCost,
    memory: Memory,
    traffic: PlannedTraffic,
    thresholds: Thresholds,
    *,
    limit: int | None,
) -> Plan:
    """Return the plan for a model on given GPUs; `limit` is the `max_model_len` in force, None for the model's own.

    `cost` is of one of `memory`'s tensor-parallel ranks. Raises `RefusedError` for what the runtime would not start.
    """
    runtime = memory.runtime
    batched = memory.max_num_batched_tokens or batched_tokens(traffic, runtime.planning)
    reasons = [
        *parallel.refusals(geometry, memory.parallel, runtime),
        *parallel.length_refused(geometry, limit, runtime),
    ]
    if reasons:
        raise RefusedError(reasons)
    longest = limit or geometry.max_model_len

    def case_of(used: Memory) -> tuple[Case, tuple[Step, ...]]:
        pool, steps = smallest_pool(geometry, cost, used, traffic, batched)
        return Case(pool, traffic, thresholds, batched, longest, geometry, used, runtime), steps

    case, steps = case_of(memory)
    if not case.fits_alone:
        case = replace(case, needs=smallest_tensor_parallel(geometry, memory, lambda used: case_of(used)[0].fits_alone))

    def beyond(count: int) -> int:
        pool = case_of(replace(memory, max_num_seqs=count))[0].pool
        return count - pool.fit(case.tokens, case.usable_share)

    if memory.max_num_seqs is memory.kv_cache_bytes is None:
        most = bisect_right(range(1, memory.sequences + 1), 0, key=beyond)
        case = replace(case, sequences_to_declare=most or None)

    def at(target: float) -> Pool | None:
        return case_of(memory.at(target))[0].pool if memory.gpu_memory_bytes else None

    return _plan(case, steps, memory.gpu_memory_utilization if memory.gpu_memory_bytes else None, at)


@dataclass(frozen=True, slots=True)
class Running:
    """What a running engine exports of itself, for one data-parallel rank; None where it does not."""

    pool: TokenPool
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    runtime: Runtime = ASSUMED


def plan_running(
    running: Running,
    traffic: PlannedTraffic,
    thresholds: Thresholds,
    *,
    limit: int | None = None,
    geometry: Geometry | None = None,
    cost: KvCost | None = None,
    gpu_memory_bytes: float | None = None,
    max_num_batched_tokens: int | None = None,
) -> Plan:
    """Return the plan for an engine that exports its pool's size; `limit` replaces its `max_model_len`.

    A model's `cost` makes it right for windowed layers too. With the memory of one GPU the plan also says what
    another utilization would leave.
    """
    said, utilization = running.pool, running.gpu_memory_utilization
    pool: Pool = said
    if cost is not None:
        pool = said.for_model(cost, running.max_model_len, max_num_batched_tokens or 0)
    meant = "as it says"
    if cost is None:
        meant = "as the engine says; for models with sliding windows give --model-config too"
    steps = [Step("Capacity in tokens", meant, said.capacity_tokens, "tokens")]
    if pool.bytes is not None:
        each = pool.bytes / said.capacity_tokens
        formula = f"{number(said.capacity_tokens)} tokens x {size(each)}"
        steps.append(Step("KV pool", formula, pool.bytes, "bytes"))
    batched = max_num_batched_tokens or batched_tokens(traffic, running.runtime.planning)
    longest = limit or running.max_model_len or (None if geometry is None else geometry.max_model_len)
    case = Case(pool, traffic, thresholds, batched, longest, geometry, runtime=running.runtime)

    def at(target: float) -> Pool | None:
        if gpu_memory_bytes is None or utilization is None:
            return None
        return pool.without((utilization - target) * gpu_memory_bytes)

    return _plan(case, tuple(steps), utilization, at)


def prompt_refused(geometry: Geometry, limit: int | None, traffic: PlannedTraffic, runtime: Runtime) -> str | None:
    """Return why prompts of this p95 are never served, None where they are: each must leave room for one token."""
    longest, flag = limit or geometry.max_model_len, runtime.planning.flags["max_model_len"]
    if longest is None or traffic.prompt_p95 < longest:
        return None
    whose = f"{flag} {longest}" if limit else f"the model's own length of {longest} tokens"
    return (
        f"prompts of {traffic.prompt_p95:g} tokens do not fit {whose}: {runtime.title} refuses such requests; plan for "
        f"{longest - 1} at most, or for a longer context{f' ({flag})' if limit else ''}"
    )


def batched_tokens(traffic: PlannedTraffic, planning: Planning) -> int:
    """Return `max_num_batched_tokens`: the power of two that fits a typical prompt in one step, within usual defaults.

    Every running request takes one token of each step and prompts share what is left, in chunks: fewer tokens make
    steps short (inter-token latency) and activations small, more let prompts through sooner (time to first token).
    """
    typical = traffic.prompt_p50 or traffic.prompt_p95
    low, high = planning.step_tokens
    return min(high, max(low, 1 << (math.ceil(typical) - 1).bit_length()))


def _plan(case: Case, steps: tuple[Step, ...], utilization: float | None, at: Callable[[float], Pool | None]) -> Plan:
    pool = case.pool
    sequences = _sequences(case)
    longest = longest_request(case, sequences)
    output = min(math.ceil(case.traffic.output_p95), longest // 2)
    shown = [*steps, *_request_steps(case)]
    if pool.tokens(case.tokens):
        shown += [
            *_sequences_steps(case, sequences),
            *_limit_steps(case, longest, output, sequences),
            _batched_step(case),
        ]
    return Plan(
        max_num_seqs=sequences,
        max_model_len=longest,
        max_input_tokens=longest - output,
        max_output_tokens=output,
        max_num_batched_tokens=case.batched_tokens,
        gpu_memory_utilization=utilization,
        pool_tokens=pool.tokens(case.tokens),
        running_tokens=pool.running_tokens(case.tokens),
        pool_bytes=pool.bytes,
        tokens_per_request=case.tokens,
        bytes_per_request=pool.request_bytes(case.tokens),
        memory_target=_memory_target(case, utilization, at),
        steps=tuple(shown),
        warnings=warnings_for(case, sequences),
    )


def _sequences(case: Case) -> int:
    """Return how many requests of p95 length fit beside the margin; a single one may take the margin too.

    Each running request takes a token of every step, so no more of them may run than a step has tokens.
    """
    fitting = case.pool.fit(case.tokens, case.usable_share)
    return min(case.most_sequences, max(fitting, int(case.fits_alone)))


def _request_steps(case: Case) -> list[Step]:
    """Return the steps that give a p95 request's size, and the pool in the same unit."""
    pool, traffic = case.pool, case.traffic
    prompt, output = math.ceil(traffic.prompt_p95), math.ceil(traffic.output_p95)
    most = "" if case.limit is None or traffic.request_p95 <= case.limit else f" but at most {number(case.limit)}"
    formula = f"{number(prompt)} prompt + {number(output)} output{most}, in blocks of {pool.block_tokens}"
    steps = [Step("Request at p95", formula, case.tokens, "tokens")]
    each, whole = pool.request_bytes(case.tokens), pool.bytes
    if each is not None and whole is not None:
        steps.append(Step("Request at p95 in memory", f"{number(case.tokens)} tokens in all layers", each, "bytes"))
        if isinstance(pool, BytePool) and whole:
            tokens = pool.tokens(case.tokens)
            steps.insert(0, Step("KV pool in tokens", pool.tokens_formula(case.tokens), tokens, "tokens"))
    return steps


def _sequences_steps(case: Case, sequences: int) -> list[Step]:
    formula = f"{case.pool.fit_formula(case.tokens, case.usable_share)}, rounded down"
    if sequences > case.pool.fit(case.tokens, case.usable_share):
        formula += "; one may take the margin"
    if sequences == case.most_sequences:
        formula += f", at most {number(sequences)}"
    steps = [Step("max_num_seqs", formula, sequences, "sequences")]
    if case.traffic.request_p50 is not None:
        typical = whole_blocks(case.traffic.request_p50, case.pool.block_tokens)
        fitting = case.pool.fit(typical, case.usable_share)
        formula = (
            f"{case.pool.fit_formula(typical, case.usable_share)}, rounded down, for comparison: {case.runtime.title} "
            "preempts when they grow to p95"
        )
        steps.append(Step("Would fit at p50", formula, fitting, "sequences"))
    return steps


def _limit_steps(case: Case, longest: int, output: int, sequences: int) -> list[Step]:
    share = case.thresholds.advice.request_share_max_ratio
    most = "" if case.limit is None else f", at most {number(case.limit)}"
    formula = f"{share:.0%} of the pool, at least a p95 request{most}"
    if case.tokens < longest < case.pool.longest(share, case.limit or longest + case.pool.block_tokens):
        formula = f"with 1 in 20 as long, {number(sequences)} still run side by side (simulated)"
    return [
        Step("Longest request", formula, longest, "tokens"),
        Step("Max output tokens", "p95 of the output", output, "tokens"),
        Step("Max input tokens", f"{number(longest)} - {number(output)}", longest - output, "tokens"),
    ]


def _batched_step(case: Case) -> Step:
    low, high = case.runtime.planning.step_tokens
    prompt = case.traffic.prompt_p50 or case.traffic.prompt_p95
    formula = f"power of two from {number(math.ceil(prompt))} prompt tokens up, within {number(low)} to {number(high)}"
    if case.batched_tokens != batched_tokens(case.traffic, case.runtime.planning):
        formula = "as given"
    return Step("max_num_batched_tokens", formula, case.batched_tokens, "tokens")


def _memory_target(case: Case, utilization: float | None, at: Callable[[float], Pool | None]) -> MemoryTarget | None:
    """Return the playbook's memory target after a device OOM, with what the smaller pool would hold."""
    thresholds, traffic = case.thresholds, case.traffic
    target, why = thresholds.advice.memory_target_ratio, "the usual target"
    if traffic.prompt_p95 >= thresholds.advice.long_context_min_tokens:
        target, why = thresholds.advice.memory_target_long_context_ratio, "for long prompts"
    elif traffic.burstiness is not None and traffic.burstiness >= thresholds.advice.bursty_min_factor:
        target, why = thresholds.advice.memory_target_long_context_ratio, "for bursts"
    if utilization is not None and utilization <= target:
        return None
    pool = at(target)
    if pool is None:
        return MemoryTarget(target, why)
    smaller = replace(case, pool=pool)
    return MemoryTarget(target, why, pool.tokens(case.tokens), _sequences(smaller))


def smallest_pool(
    geometry: Geometry, cost: KvCost, memory: Memory, traffic: PlannedTraffic, batched_tokens: int
) -> tuple[BytePool, tuple[Step, ...]]:
    """Return the pool of one engine: that of the pipeline stage which holds the fewest requests."""
    if geometry.state is not None:
        geometry = replace(geometry, state=geometry.state.on(memory.gpu))
    cost = geometry.costing(cost.value_bytes, memory.tensor_parallel, cost.requested_block_tokens)
    if memory.pipeline_parallel == 1:
        return pool_from_memory(geometry, cost, memory, batched_tokens)
    found = []
    for stage in parallel.stages(geometry.layers, memory.pipeline_parallel):
        part = geometry.stage(stage)
        if part.groups:
            costing = part.costing(cost.value_bytes, memory.tensor_parallel, cost.requested_block_tokens)
            found.append(pool_from_memory(geometry, costing, memory, batched_tokens, stage))
    return min(found, key=lambda one: one[0].fit(whole_blocks(traffic.request_p95, one[0].block_tokens), 1e6))


def smallest_tensor_parallel(geometry: Geometry, memory: Memory, fits: Callable[[Memory], bool]) -> Parallel | None:
    """Return the fewest GPUs of this kind for which `fits` is true, None where no usual number is enough.

    First more of them side by side, then also one behind the other.
    """
    least = memory.tensor_parallel
    ranks = [n for n in parallel.possible_tensor_parallel(geometry) if least <= n <= _MAX_TENSOR_PARALLEL]
    pipelines = range(memory.pipeline_parallel, min(_MAX_PIPELINE, geometry.layers) + 1)
    for pipeline in pipelines:
        for tensor in ranks if pipeline == memory.pipeline_parallel else ranks[-1:]:
            used = replace(
                memory,
                tensor_parallel=tensor,
                pipeline_parallel=pipeline,
                gpu_memory_bytes=tuple(sorted(memory.gpu_memory_bytes)[:1]),
            )
            if not list(parallel.refusals(geometry, used.parallel, memory.runtime)) and fits(used):
                return used.parallel
    return None
