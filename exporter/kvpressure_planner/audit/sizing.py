"""The memory of an engine in a manifest, as `kvpressure plan` computes it; or why it is not known."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from kvpressure.capacity.geometry import DTYPE_BYTES, KV_DTYPE_BYTES, Geometry, KvCost, ModelConfigError, read_geometry
from kvpressure.capacity.gpus import Gpu, gpu_named
from kvpressure.capacity.memory import Memory
from kvpressure.capacity.parallel import RefusedError, length_refused, refusals
from kvpressure.capacity.pool import BytePool
from kvpressure.commandline.options import human, whole
from kvpressure.commandline.words import as_written
from kvpressure.config.thresholds import Thresholds
from kvpressure.launch import ANNOTATION_PREFIX
from kvpressure_planner.audit.engine import Engine
from kvpressure_planner.audit.places import GPU_ANNOTATION, requested_slice
from kvpressure_planner.capacity.capacity_plan import Plan, batched_tokens, plan_model, smallest_pool
from kvpressure_planner.capacity.case import PlannedTraffic
from kvpressure_planner.capacity.drafts import with_drafts

PROMPT: Final = f"{ANNOTATION_PREFIX}prompt-p95"
OUTPUT: Final = f"{ANNOTATION_PREFIX}output-p95"
"""Annotations: the lengths of prompts and outputs at p95, in tokens, that the limits should allow."""
ASKED: Final = ("(--model-config NAME=FILE)", f"(node selector, annotation {GPU_ANNOTATION}, or --gpu)")
"""What would tell what is not known."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known besides the manifests: `models` finds a configuration by the name a model is served under.

    `files` are those that were given for names, as `plan` takes them too.
    """

    models: Callable[[str], Mapping[str, Any] | None] = lambda served: None  # noqa: ARG005 - knows none
    gpu: Gpu | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    _geometries: dict[tuple[int, str, str | None], tuple[Mapping[str, Any], Geometry]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def geometry(self, config: Mapping[str, Any], model: str, dtype: str | None) -> Geometry:
        """Return the geometry of a configuration, read once: a fleet serves the same few models.

        Raises ModelConfigError.
        """
        key = (id(config), model, dtype)
        if key not in self._geometries:  # the configuration is kept too, so that no other one gets its id
            self._geometries[key] = config, read_geometry(config, model, dtype=dtype)
        return self._geometries[key][1]

    def draft(self, name: str, dtype: str | None) -> Geometry | None:
        """Return the geometry of a draft model, None where it is not known. Raises ModelConfigError."""
        config = self.models(name)
        return None if config is None else self.geometry(config, name, dtype)


NOTHING_KNOWN: Final = Knowledge()


@dataclass(frozen=True, slots=True)
class Sized:
    """An engine whose memory can be computed.

    `longest` is the longest request in force, `declared` that of a flag.
    `refused` is why the server would not start at all; `plan` is None where traffic is not known. `command` is the
    command line that computes the plan.
    """

    geometry: Geometry
    cost: KvCost
    memory: Memory
    traffic: PlannedTraffic
    longest: int
    command: str
    gpu: Gpu
    declared: int | None = None
    refused: tuple[str, ...] = ()
    plan: Plan | None = None
    _pools: dict[int, tuple[Memory, BytePool]] = field(default_factory=dict, compare=False, repr=False)
    """By the id of the memory, which is kept too: several checks need the same pool, and computing it is slow."""

    def pool(self, memory: Memory | None = None) -> BytePool:
        """Return the memory that is left for the KV cache."""
        used = memory or self.memory
        if id(used) not in self._pools:
            step = used.max_num_batched_tokens or batched_tokens(self.traffic, used.runtime.planning)
            self._pools[id(used)] = used, smallest_pool(self.geometry, self.cost, used, self.traffic, step)[0]
        return self._pools[id(used)][1]

    def starts(self, memory: Memory | None = None) -> bool:
        """Whether the weights fit, and, where the server requires it, one longest request."""
        least = self.longest if self.memory.runtime.planning.needs_longest else self.cost.block_tokens
        return not self.refused and self.pool(memory).fit(least, 1.0) >= 1


def size(engine: Engine, knowledge: Knowledge, thresholds: Thresholds) -> Sized | str:
    """Return the engine's memory, or why it cannot be computed, as a sentence without a full stop."""
    if engine.reading.hidden or not engine.runtime.planning.by_memory:
        hidden = f"not everything of the command is known: {next(iter(engine.reading.hidden), '')}"
        return hidden if engine.reading.hidden else f"how {engine.runtime.title} fills a GPU's memory is not known here"
    config = knowledge.models(engine.model) if engine.model else None
    if config is None:
        which = as_written(engine.model) or "the model"
        return f"the configuration of {which} is not known {ASKED[0]}"
    if part := requested_slice(engine.resources.requested):
        return f"a part of a GPU is requested ({part}), whose memory is not known here"
    gpu = gpu_named(engine.resources.gpu) if engine.resources.gpu else knowledge.gpu
    if gpu is None:
        which = f"the GPU {engine.resources.gpu!r} is not known" if engine.resources.gpu else "no GPU is named"
        return f"{which} {ASKED[1]}"
    try:
        return _sized(engine, config, gpu, thresholds, knowledge)
    except (ModelConfigError, ValueError, KeyError) as error:
        whose = "" if isinstance(error, ModelConfigError) else f"{as_written(engine.model)}: "
        return f"{whose}{error}".splitlines()[0]


def traffic_of(engine: Engine) -> PlannedTraffic | None:
    """Return the lengths as annotated; None without both."""
    prompt, output = (human(engine.annotations.get(name, "")) for name in (PROMPT, OUTPUT))
    return PlannedTraffic(prompt, output) if prompt and output and prompt >= 1 <= output else None


def sequences_in_force(engine: Engine, sized: Sized) -> int | None:
    """Return how many sequences may run: as declared, else the server's default, at most the tokens of a step."""
    if (declared := _whole_limit(engine, "max_num_seqs")) is not None:
        return declared
    count = engine.runtime.audit.default_sequences(sized.gpu.name, sized.gpu.memory_bytes)
    step = _whole_limit(engine, "max_num_batched_tokens")
    return count if count is None or step is None or not engine.runtime.audit.needs_step else min(count, step)


def _sized(engine: Engine, config: Mapping[str, Any], gpu: Gpu, thresholds: Thresholds, knowledge: Knowledge) -> Sized:
    """Return the engine's memory. Raises ModelConfigError, and ValueError with what is not known."""
    flags = engine.runtime.starting.flags.sizing
    geometry = _geometry(engine, config, knowledge)
    memory = _memory(engine, gpu)
    limit = _whole_limit(engine, "max_model_len")
    longest = limit or geometry.max_model_len
    if longest is None:
        raise ValueError("neither the model nor a flag limits the length of a request")
    kv_cache_dtype = _choice(engine, flags.kv_cache_dtype, KV_DTYPE_BYTES) or "auto"
    traffic = traffic_of(engine)
    known_step = memory.max_num_batched_tokens or traffic
    sized = Sized(
        geometry=geometry,
        cost=geometry.cost(kv_cache_dtype, memory.tensor_parallel),
        memory=memory if known_step else replace(memory, max_num_batched_tokens=_step(engine, gpu)),
        # Without known lengths every request counts as a longest one.
        traffic=traffic or PlannedTraffic(longest, 1),
        longest=longest,
        command=_command(engine, memory, kv_cache_dtype, traffic, limit, knowledge.files.get(engine.model)),
        gpu=gpu,
        declared=limit,
        refused=(
            *refusals(geometry, memory.parallel, engine.runtime),
            *length_refused(geometry, limit, engine.runtime),
        ),
    )
    return sized if traffic is None else _planned(sized, traffic, thresholds)


def _planned(sized: Sized, traffic: PlannedTraffic, thresholds: Thresholds) -> Sized:
    """Return it with its plan, where the server would start."""
    if not sized.refused:
        with suppress(RefusedError):
            memory = sized.memory
            plan = plan_model(sized.geometry, sized.cost, memory, traffic, thresholds, limit=sized.declared)
            return replace(sized, plan=plan)
    return sized


def _memory(engine: Engine, gpu: Gpu) -> Memory:
    """Return the memory as the flags divide it. Raises ValueError with what is not known."""
    flags, options = engine.runtime.starting.flags, engine.reading.options
    tensor, pipeline, data = (_rank(engine, option) for option in flags.divides(options))
    _require_known(engine)
    utilization = engine.reading.limits.get("gpu_memory_utilization")
    return Memory(
        gpu_memory_bytes=(gpu.memory_bytes,),
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=data,
        expert_parallel=flags.sizing.expert in options,
        gpu_memory_utilization=engine.runtime.planning.memory_share if utilization is None else utilization.value,
        max_num_batched_tokens=_whole_limit(engine, "max_num_batched_tokens"),
        max_num_seqs=_whole_limit(engine, "max_num_seqs"),
        runtime=engine.runtime,
        gpu=gpu.name,
    )


def _require_known(engine: Engine) -> None:
    """Raise ValueError where an option that memory follows from is not known, or sizes the pool by itself."""
    flags = engine.runtime.starting.flags
    sizing = (getattr(flags.sizing, field.name) for field in fields(flags.sizing) if field.name != "stretches")
    options = (*sizing, *flags.sizing.stretches, flags.sizes_pool)
    for name in ("gpu_memory_utilization", "max_model_len", *options):
        if name in engine.reading.unclear:
            raise ValueError(engine.reading.unclear[name])
    if flags.sizes_pool in engine.reading.options:
        raise ValueError(f"--{flags.sizes_pool} sizes the pool")


def _whole_limit(engine: Engine, name: str) -> int | None:
    limit = engine.reading.limits.get(name)
    return None if limit is None else int(limit.value)


def _step(engine: Engine, gpu: Gpu) -> int:
    """Return the tokens of a step where neither a flag nor the traffic gives them: the server's default on the GPU."""
    small, large = engine.runtime.planning.step_tokens
    sequences = engine.runtime.audit.default_sequences(gpu.name, gpu.memory_bytes)
    return large if sequences in {None, engine.runtime.audit.largest_sequences} else small


def _rank(engine: Engine, option: str) -> int:
    given = engine.reading.options.get(option)
    if given is None:
        return 1
    count = whole(given.text)
    if count is None or not 1 <= count <= 1024:
        raise ValueError(f"{given.written} is not a number of GPUs")
    return int(count)


def _choice(engine: Engine, option: str, known: Mapping[str, float]) -> str | None:
    given = engine.reading.options.get(option)
    if given is None or given.text == "auto":
        return None
    if given.text not in known:
        raise ValueError(f"{given.written} is a type whose size is not known")
    return given.text


def _geometry(engine: Engine, config: Mapping[str, Any], knowledge: Knowledge) -> Geometry:
    """Return the geometry as the flags change it: type of the weights, quantization, drafts, a longer context."""
    flags, options = engine.runtime.starting.flags.sizing, engine.reading.options
    dtype = _choice(engine, flags.dtype, DTYPE_BYTES)
    geometry = _quantized(engine, config, knowledge, dtype)
    if flags.drafts and (drafts := options.get(flags.drafts)) is not None:
        geometry = with_drafts(geometry, drafts.text, lambda name: knowledge.draft(name, dtype))
    return replace(geometry, stretched=True) if any(option in options for option in flags.stretches) else geometry


def _quantized(engine: Engine, config: Mapping[str, Any], knowledge: Knowledge, dtype: str | None) -> Geometry:
    """Return the geometry, with the quantization that a flag sets where the weights have none of their own."""
    given = engine.reading.options.get(engine.runtime.starting.flags.sizing.quantization)
    name = as_written(engine.model)
    if given is None or config.get("quantization_config") is not None:
        return knowledge.geometry(config, name, dtype)
    try:
        return knowledge.geometry({**config, "quantization_config": {"quant_method": given.text}}, name, dtype)
    except ModelConfigError:
        # Its sentence would tell the flag's value, which may come from a variable.
        raise ValueError(f"how large the weights of {given.written} are is not known") from None


def _command(
    engine: Engine,
    memory: Memory,
    kv_cache_dtype: str,
    traffic: PlannedTraffic | None,
    longest: int | None,
    file: str | None,
) -> str:
    """Return `kvpressure plan` with the same values."""
    share = memory.gpu_memory_utilization
    lengths = ("TOKENS", "TOKENS") if traffic is None else (f"{traffic.prompt_p95:g}", f"{traffic.output_p95:g}")
    given = {
        "--model": as_written(engine.model) if file is None else None,
        "--model-config": file,
        "--gpu": memory.gpu,
        "--tensor-parallel-size": memory.tensor_parallel if memory.tensor_parallel > 1 else None,
        "--pipeline-parallel-size": memory.pipeline_parallel if memory.pipeline_parallel > 1 else None,
        "--data-parallel-size": memory.data_parallel if memory.data_parallel > 1 else None,
        "--runtime": None if engine.runtime.assumed else engine.runtime.name,
        "--enable-expert-parallel": "" if memory.expert_parallel else None,
        "--kv-cache-dtype": None if kv_cache_dtype == "auto" else kv_cache_dtype,
        "--dtype": _choice(engine, engine.runtime.starting.flags.sizing.dtype, DTYPE_BYTES),
        "--max-model-len": longest,
        "--max-num-batched-tokens": memory.max_num_batched_tokens,
        "--gpu-memory-utilization": None if share == engine.runtime.planning.memory_share else f"{share:g}",
        "--prompt-p95": lengths[0],
        "--output-p95": lengths[1],
    }
    flags = ((name, str(value)) for name, value in given.items() if value is not None)
    return shlex.join(["kvpressure", "plan", *filter(None, itertools.chain.from_iterable(flags))])
