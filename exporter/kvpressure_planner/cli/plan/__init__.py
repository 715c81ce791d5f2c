"""`kvpressure plan`: how many sequences fit, from a model and its GPUs or from a running engine, arithmetic shown."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from kvpressure.capacity.arithmetic import GIB
from kvpressure.capacity.geometry import (
    BLOCK_TOKENS,
    DTYPE_BYTES,
    KV_DTYPE_BYTES,
    Geometry,
    KvCost,
    ModelConfigError,
    read_geometry,
)
from kvpressure.capacity.gpus import GPUS, Gpu
from kvpressure.capacity.known_models import hub_name, nearest_models
from kvpressure.capacity.memory import Memory
from kvpressure.capacity.parallel import Parallel, RefusedError
from kvpressure.capacity.pool import TokenPool
from kvpressure.cli.access import access_option, namespace_option
from kvpressure.cli.options import UsualFirst
from kvpressure.cli.say import CliError, fail, say, say_json
from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.errors import SourceError
from kvpressure.runtimes.registry import ASSUMED, NAMES, named
from kvpressure.runtimes.runtime import Runtime
from kvpressure_planner.capacity.capacity_plan import Plan, Running, plan_model, plan_running, prompt_refused
from kvpressure_planner.capacity.case import PlannedTraffic
from kvpressure_planner.capacity.drafts import with_drafts
from kvpressure_planner.cli.cards import predicted, prediction_report
from kvpressure_planner.cli.model_file import known_gpu, known_model, plain_bytes, read_config, size_bytes
from kvpressure_planner.cli.plan.report import (
    flags,
    planned,
    report,
    session_options,
    session_report,
    sessions_alone,
    sessions_of,
    with_lengths,
)

_FILE = click.Path(dir_okay=False, path_type=Path)
_TOKENS = click.FloatRange(1, 10_000_000)
_COUNT = click.IntRange(1, 10_000_000)
_RANKS: dict[str, Any] = {"default": 1, "show_default": True, "type": click.IntRange(1, 1024)}
_DURATION = "With --url: take lengths from the requests that finish in so many seconds."
_GPU_MEMORY = "Memory of each GPU, such as 80GiB; once, or once per GPU."
_GPU = f"A GPU by name, instead of --gpu-memory: {', '.join(GPUS)}."
_MEMORY_SHARE = "Share of the memory it takes. [default: 0.9]"
_KV_MEMORY = "Memory of the KV cache per GPU, from the engine's log, in bytes or such as 20GiB."


@click.command(
    cls=UsualFirst,
    usual=(
        "model",
        "model_config",
        "url",
        "gpu",
        "gpu_memory",
        "tensor_parallel",
        "prompt_p95",
        "output_p95",
        "concurrency",
        "as_json",
    ),
)
@click.option("--model-config", type=_FILE, help="The model's Hugging Face config.json.")
@click.option("--model", metavar="NAME", help="Instead of --model-config, a well-known model by its name on the hub.")
@click.option("--url", help="A running engine: host:port, :port, http://host:port, or pod/NAME.")
@click.option("--duration", default=0.0, type=click.FloatRange(0, 3600), help=_DURATION)
@click.option("--kv-cache-tokens", type=_COUNT, help="Instead of --url: the pool's tokens as the engine logs them.")
@click.option("--gpu-memory", type=size_bytes, metavar="SIZE", multiple=True, help=_GPU_MEMORY)
@click.option("--gpu", type=known_gpu, metavar="NAME", help=_GPU)
@click.option("--tensor-parallel-size", "tensor_parallel", **_RANKS, help="GPUs that share each layer.")
@click.option("--pipeline-parallel-size", "pipeline_parallel", **_RANKS, help="Stages that share the layers.")
@click.option("--data-parallel-size", "data_parallel", **_RANKS, help="Ranks with a pool each; they share experts.")
@click.option("--enable-expert-parallel", "expert_parallel", is_flag=True, help="Whole experts on each GPU.")
@click.option("--gpu-memory-utilization", type=click.FloatRange(0.05, 1.0), help=_MEMORY_SHARE)
@click.option("--kv-cache-dtype", default="auto", show_default=True, type=click.Choice(["auto", *KV_DTYPE_BYTES]))
@click.option("--dtype", type=click.Choice(list(DTYPE_BYTES)), help="Instead of the configuration's torch_dtype.")
@click.option("--speculative-config", metavar="JSON", help="As the server has it: its layer or draft is counted.")
@click.option("--weights-gib", type=click.FloatRange(0.001), help="Weights of the whole model, instead of an estimate.")
@click.option("--kv-cache-memory-bytes", type=plain_bytes, metavar="SIZE", help=_KV_MEMORY)
@click.option("--max-model-len", type=_COUNT, help="Instead of the model's own.")
@click.option("--max-num-seqs", type=_COUNT, help="As the server is started; its sampler makes room for so many.")
@click.option("--max-num-batched-tokens", type=_COUNT, help="Keep this value instead of a computed one.")
@click.option("--prompt-p95", type=_TOKENS, help="Prompt length in tokens.")
@click.option("--prompt-p50", type=_TOKENS)
@click.option("--output-p95", type=_TOKENS, help="Output length in tokens, or the max_tokens that clients request.")
@click.option("--output-p50", type=_TOKENS)
@click.option("--concurrency", type=click.FloatRange(1), help="Peak number of requests in flight.")
@click.option(
    "--runtime", default=ASSUMED.name, show_default=True, type=click.Choice(NAMES), help="With --url the page says it."
)
@session_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@namespace_option
@access_option
def command(**options: Any) -> None:
    """Plan safe limits: max_num_seqs, token limits, max-num-batched-tokens and memory target.

    For a model give --model-config or --model, --gpu or --gpu-memory, --prompt-p95 and --output-p95. For a running
    engine --url is enough; with --model-config and --max-num-batched-tokens as well, its layers with sliding windows
    are counted right.

    Chats and agents that come back with all that was said before are described by --sessions, --context and --think,
    which are enough by themselves: it says what they keep in the pool, where hits collapse, and what serves them.

    The exit code is 1 when not even one request fits, and 2 when something is missing or the server would refuse
    it, with what to do.
    """
    live = options["url"] is not None or options["kv_cache_tokens"] is not None
    if options["model_config"] is not None and options["model"] is not None:
        raise click.UsageError("give --model-config or --model, not both")
    if options["url"] is not None and options["kv_cache_tokens"] is not None:
        raise click.UsageError("give --url or --kv-cache-tokens, not both")
    described = sessions_of(options)
    if not live and options["model_config"] is options["model"] is None:
        if described is not None:
            sessions_alone(described, as_json=options["as_json"])
        raise click.UsageError(
            "give --model-config or --model for a model, or --url or --kv-cache-tokens for an engine"
        )
    if described is not None:
        options = with_lengths(options, described)
    try:
        runtime, title, plan = _from_engine(options) if live else _from_model(options)
    except (ModelConfigError, SourceError, RefusedError) as error:
        fail(*f"{error}".splitlines())
    given = flags(plan, options["kv_cache_dtype"], _parallel(options), runtime.planning, estimated=not live)
    sessions = None if described is None else planned(described, plan)
    gpus = None if sessions is None or live else _gpus(options, plan.pool_tokens, sessions.pool_tokens_needed)
    session_lines = () if sessions is None else (*session_report(sessions, plan.pool_tokens, gpus),)
    prediction = None if live else predicted(plan, options, runtime)
    if options["as_json"]:
        more: dict[str, Any] = {} if prediction is None else {"predicted": asdict(prediction)}
        more |= {} if sessions is None else {"sessions": {**asdict(sessions), "tensor_parallel_size": gpus}}
        say_json({"title": title, "flags": given, **asdict(plan), **more})
    else:
        say(*report(title, given, plan, runtime, session_lines), *prediction_report(prediction, plan.max_num_seqs))
    sys.exit(0 if plan.max_num_seqs else 1)


def _gpus(options: Mapping[str, Any], pool_tokens: int, needed: int) -> int | None:
    """Return the tensor-parallel size for a pool of `needed` tokens, None where the present one suffices, or none."""
    for factor in (2, 4, 8) if pool_tokens < needed else ():
        tensor = factor * options["tensor_parallel"]
        with suppress(RefusedError, click.UsageError):
            if _from_model({**options, "tensor_parallel": tensor})[2].pool_tokens >= needed:
                return int(tensor)
    return None


def _from_model(options: Mapping[str, Any]) -> tuple[Runtime, str, Plan]:
    runtime = named(options["runtime"])
    if not runtime.planning.by_memory:
        raise RefusedError([f"{runtime.title}: how its cache follows from the memory of a GPU is not known here"])
    memory = _memory(options, runtime)
    traffic = _traffic(options, {})
    geometry = _geometry(options, with_weights=memory.weights_bytes is memory.kv_cache_bytes is None)
    cost = _cost(geometry, options, BLOCK_TOKENS)
    longest = options["max_model_len"]
    if (too_long := prompt_refused(geometry, longest, traffic, runtime)) is not None:
        raise RefusedError([too_long])
    plan = plan_model(geometry, cost, memory, traffic, load_thresholds(), limit=longest)
    title = f"{geometry.model_type}: {geometry.layers} layers, {geometry.attention}, {geometry.dtype}"
    if memory.parallel.gpus > 1:
        title += f", on {memory.parallel.gpus} GPUs"
    if memory.data_parallel > 1:
        title += f"; for each of {memory.data_parallel} data-parallel ranks"
    return runtime, title, plan


def _from_engine(options: Mapping[str, Any]) -> tuple[Runtime, str, Plan]:
    title, shape = "an engine with the KV cache size given", dict[str, float | None]()
    pool, runtime = TokenPool(options["kv_cache_tokens"] or 0, BLOCK_TOKENS), named(options["runtime"])
    running = Running(pool, options["max_model_len"], runtime=runtime)
    if options["url"] is not None:
        # Imports the HTTP client, which only this needs.
        from kvpressure_planner.cli.plan.engine import read_engine  # noqa: PLC0415

        engine = read_engine(options["url"], {**options, "context": None}, options["duration"])
        title = engine.title
        shape = dict(engine.shape)
        running = engine.running
    if options["gpu_memory_utilization"] is not None:
        running = replace(running, gpu_memory_utilization=options["gpu_memory_utilization"])
    known = options["model_config"] is not None or options["model"] is not None
    geometry = _geometry(options, with_weights=False) if known else None
    plan = plan_running(
        running,
        _traffic(options, shape),
        load_thresholds(),
        limit=options["max_model_len"],
        geometry=geometry,
        cost=None if geometry is None else _cost(geometry, options, running.pool.block_tokens),
        gpu_memory_bytes=min(_gpu_memory(options), default=None),
        max_num_batched_tokens=options["max_num_batched_tokens"],
    )
    return running.runtime, title, plan


def _gpu_memory(options: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the bytes of the GPUs given, () where none are."""
    gpu: Gpu | None = options["gpu"]
    return (*options["gpu_memory"], *(() if gpu is None else (gpu.memory_bytes,)))


def _geometry(options: Mapping[str, Any], *, with_weights: bool) -> Geometry:
    path, name = options["model_config"], options["model"]
    config = known_model(hub_name(name) or name) if path is None else read_config(path)
    if config is None:
        near = " or ".join(nearest_models(name))
        hint = f"did you mean {near}? Else " if near else ""
        raise CliError(f"--model {name} is not known here; {hint}give its config.json with --model-config")
    geometry = read_geometry(config, str(path or name), dtype=options["dtype"], with_weights=with_weights)

    def draft(called: str) -> Geometry | None:
        """Return a draft model's geometry, by its name on the hub or the folder that it is in."""
        file = Path(called, "config.json")
        own = known_model(hub_name(called) or called) or (read_config(file) if file.is_file() else None)
        return None if own is None else read_geometry(own, called, dtype=geometry.dtype, with_weights=with_weights)

    try:
        return with_drafts(geometry, drafts, draft) if (drafts := options["speculative_config"]) else geometry
    except ModelConfigError:
        raise
    except ValueError as error:
        raise CliError(f"{error}") from error


def _cost(geometry: Geometry, options: Mapping[str, Any], block_tokens: int) -> KvCost:
    return geometry.cost(options["kv_cache_dtype"], options["tensor_parallel"], block_tokens)


def _parallel(options: Mapping[str, Any]) -> Parallel:
    tensor, pipeline, data = (options[f"{kind}_parallel"] for kind in ("tensor", "pipeline", "data"))
    return Parallel(tensor, pipeline, data, expert=options["expert_parallel"])


def _memory(options: Mapping[str, Any], runtime: Runtime) -> Memory:
    given = _gpu_memory(options)
    parallel = _parallel(options)
    gpu = options["gpu"]
    if gpu is not None and options["gpu_memory"]:
        raise click.UsageError("give --gpu or --gpu-memory, not both")
    ranks = parallel.gpus
    if not given and options["kv_cache_memory_bytes"] is None:
        named = "--model-config" if options["model_config"] else "--model"
        raise click.UsageError(f"{named} needs --gpu, such as H100, or --gpu-memory, such as 80GiB")
    if given and len(given) not in {1, ranks}:
        raise click.UsageError(f"--gpu-memory is given {len(given)} times for {ranks} GPUs: give it once, or once each")
    weights = options["weights_gib"]
    return Memory(
        gpu_memory_bytes=given,
        tensor_parallel=parallel.tensor,
        pipeline_parallel=parallel.pipeline,
        data_parallel=parallel.data,
        expert_parallel=parallel.expert,
        gpu="" if gpu is None else gpu.name,
        gpu_memory_utilization=options["gpu_memory_utilization"] or runtime.planning.memory_share,
        max_num_batched_tokens=options["max_num_batched_tokens"],
        weights_bytes=None if weights is None else weights * GIB,
        kv_cache_bytes=options["kv_cache_memory_bytes"],
        runtime=runtime,
        max_num_seqs=options["max_num_seqs"],
    )


def _traffic(options: Mapping[str, Any], shape: Mapping[str, float | None]) -> PlannedTraffic:
    """Return the traffic of the options, completed from the engine's own."""
    names = ("prompt_p95", "output_p95", "prompt_p50", "output_p50", "concurrency", "burstiness", "held_now")
    known = {name: options.get(name) or shape.get(name) for name in names}
    prompt, output = known.pop("prompt_p95"), known.pop("output_p95")
    if prompt is None or output is None:
        lacking = [flag for flag, value in (("--prompt-p95", prompt), ("--output-p95", output)) if value is None]
        why = "the engine has finished no request" if options["url"] else "lengths in tokens"
        raise click.UsageError(f"missing {' and '.join(lacking)} ({why})")
    for name, most in (("prompt", prompt), ("output", output)):
        typical = options[f"{name}_p50"]
        if typical is not None and typical > most:
            raise click.UsageError(
                f"--{name}-p50 {typical:g} is above the p95 of {most:g}: half of the requests cannot be longer than "
                "what 5 % exceed; the two may be swapped"
            )
    return PlannedTraffic(prompt, output, **known)
