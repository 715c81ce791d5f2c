"""`kvpressure plan`: how many sequences fit, from a model and its GPUs or from a running engine, arithmetic shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from kvpressure.cli.plan_page import LiveError, LiveShape
from kvpressure.cli.plan_report import flags, report
from kvpressure.cli.say import say, say_json
from kvpressure.config.thresholds import load_thresholds
from kvpressure.plan.arithmetic import GIB
from kvpressure.plan.capacity_plan import Plan, Running, plan_model, plan_running
from kvpressure.plan.geometry import (
    BLOCK_TOKENS,
    DTYPE_BYTES,
    KV_DTYPE_BYTES,
    Geometry,
    KvCost,
    ModelConfigError,
    read_geometry,
)
from kvpressure.plan.pool import Memory, TokenPool
from kvpressure.plan.traffic import Traffic
from kvpressure.runtimes.registry import ASSUMED, NAMES, named
from kvpressure.runtimes.runtime import Runtime

LARGEST_CONFIG_BYTES = 4 << 20

_UNITS = {"gib": GIB, "gb": 1e9, "mib": GIB / 1024, "mb": 1e6, "": GIB}


def size_bytes(text: str) -> float:
    """Bytes of a size such as 80GiB, 79.1 GiB, 80GB or 81559MiB; a bare number is GiB. Raises click.BadParameter."""
    given = text.strip().lower()
    amount = given.rstrip("gimb ")
    try:
        size = float(amount) * _UNITS[given[len(amount) :].strip()]
    except (ValueError, KeyError):
        size = -1.0
    if not 0 < size < 2**60:
        raise click.BadParameter(f"{text!r} is not a size such as 80GiB, 80GB or 81559MiB")
    return size


_TOKENS = click.FloatRange(1, 10_000_000)
_COUNT = click.IntRange(1, 10_000_000)


@click.command()
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="The model's Hugging Face config.json.")
@click.option("--url", help="A running engine (http://host:port, host:port, or its page's full address).")
@click.option(
    "--seconds",
    default=0.0,
    type=click.FloatRange(0, 3600),
    help="With --url: look at what finishes in this time.",
)
@click.option("--kv-cache-tokens", type=_COUNT, help="Instead of --url: the pool's tokens as the engine logs them.")
@click.option(
    "--gpu-memory",
    type=size_bytes,
    metavar="SIZE",
    multiple=True,
    help="Memory of each GPU, as 80GiB; once, or once per GPU.",
)
@click.option("--tensor-parallel", default=1, show_default=True, type=click.IntRange(1, 1024), help="GPUs per replica.")
@click.option(
    "--gpu-memory-utilization",
    type=click.FloatRange(0.05, 1.0),
    help="Share of the memory it takes. [default: 0.9]",
)
@click.option("--kv-cache-dtype", default="auto", show_default=True, type=click.Choice(["auto", *KV_DTYPE_BYTES]))
@click.option("--dtype", type=click.Choice(list(DTYPE_BYTES)), help="Instead of the configuration's torch_dtype.")
@click.option("--weights-gib", type=click.FloatRange(0.001), help="Weights of the whole model, instead of an estimate.")
@click.option(
    "--reserve-gib", type=click.FloatRange(0), help="Activations and the rest per GPU, instead of an estimate."
)
@click.option(
    "--kv-cache-memory", type=size_bytes, metavar="SIZE", help="Memory of the KV cache per GPU, from the engine's log."
)
@click.option("--block-size", default=BLOCK_TOKENS, show_default=True, type=click.IntRange(1, 4096), help="In tokens.")
@click.option("--max-model-len", type=_COUNT, help="Instead of the model's own.")
@click.option("--max-num-batched-tokens", type=_COUNT, help="Keep this value instead of a computed one.")
@click.option("--prompt-p95", type=_TOKENS, help="Prompt length in tokens.")
@click.option("--prompt-p50", type=_TOKENS)
@click.option("--output-p95", type=_TOKENS, help="Output length in tokens, or the max_tokens that clients ask for.")
@click.option("--output-p50", type=_TOKENS)
@click.option("--concurrency", type=click.FloatRange(1), help="Peak number of requests in flight.")
@click.option("--burstiness", type=click.FloatRange(1), help="Peak arrivals over mean arrivals.")
@click.option(
    "--runtime", default=ASSUMED.name, show_default=True, type=click.Choice(NAMES), help="With --url the page says it."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(**options: Any) -> None:
    """Plan safe limits: max_num_seqs, token limits, max-num-batched-tokens and memory target.

    For a model give --config, --gpu-memory, --prompt-p95 and --output-p95. For a running engine --url is enough; with
    --config as well its layers with sliding windows are counted right.

    The exit code is 1 when not even one request fits, and 2 when something is missing, which is then named.
    """
    live = options["url"] is not None or options["kv_cache_tokens"] is not None
    if not live and options["config"] is None:
        raise click.UsageError("give --config for a model, or --url or --kv-cache-tokens for a running engine")
    if options["url"] is not None and options["kv_cache_tokens"] is not None:
        raise click.UsageError("give --url or --kv-cache-tokens, not both")
    try:
        runtime, title, plan = _from_engine(options) if live else _from_model(options)
    except (ModelConfigError, LiveError) as error:
        say(error, err=True)
        sys.exit(2)
    given = flags(plan, options["kv_cache_dtype"], options["tensor_parallel"], runtime.planning, estimated=not live)
    if options["as_json"]:
        say_json({"title": title, "flags": given, **asdict(plan)})
    else:
        say(*report(title, given, plan, runtime))
    sys.exit(0 if plan.max_num_seqs else 1)


def _from_model(options: Mapping[str, Any]) -> tuple[Runtime, str, Plan]:
    runtime = named(options["runtime"])
    memory = _memory(options, runtime)
    traffic = _traffic(options, LiveShape())
    geometry = _geometry(options, with_weights=memory.weights_bytes is memory.kv_cache_bytes is None)
    cost = _cost(geometry, options, options["block_size"])
    longest = options["max_model_len"]
    plan = plan_model(geometry, cost, memory, traffic, load_thresholds(), limit=longest, runtime=runtime)
    ranks = "" if memory.tensor_parallel == 1 else f", on {memory.tensor_parallel} GPUs"
    title = f"{geometry.model_type}: {geometry.layers} layers, {geometry.attention}, {geometry.dtype}{ranks}"
    return runtime, title, plan


def _from_engine(options: Mapping[str, Any]) -> tuple[Runtime, str, Plan]:
    shape = LiveShape()
    title = "an engine with the KV cache size given"
    pool, runtime = TokenPool(options["kv_cache_tokens"] or 0, options["block_size"]), named(options["runtime"])
    running = Running(pool, options["max_model_len"], runtime=runtime)
    if options["url"] is not None:
        # Reading a page takes the whole HTTP client, and only this needs it.
        from kvpressure.cli.plan_live import read_engine  # noqa: PLC0415

        engine = read_engine(options["url"], options["seconds"])
        title, shape, running = engine.title, engine.shape, engine.running
    if options["gpu_memory_utilization"] is not None:
        running = replace(running, gpu_memory_utilization=options["gpu_memory_utilization"])
    geometry = None if options["config"] is None else _geometry(options, with_weights=False)
    plan = plan_running(
        running,
        _traffic(options, shape),
        load_thresholds(),
        limit=options["max_model_len"],
        geometry=geometry,
        cost=None if geometry is None else _cost(geometry, options, running.pool.block_tokens),
        gpu_memory_bytes=min(options["gpu_memory"]) if options["gpu_memory"] else None,
        max_num_batched_tokens=options["max_num_batched_tokens"],
    )
    return running.runtime, title, plan


def _geometry(options: Mapping[str, Any], *, with_weights: bool) -> Geometry:
    path = options["config"]
    return read_geometry(_read_json(path), str(path), dtype=options["dtype"], with_weights=with_weights)


def _cost(geometry: Geometry, options: Mapping[str, Any], block_tokens: int) -> KvCost:
    return geometry.cost(options["kv_cache_dtype"], options["tensor_parallel"], block_tokens)


def _memory(options: Mapping[str, Any], runtime: Runtime) -> Memory:
    given, ranks = options["gpu_memory"], options["tensor_parallel"]
    if not given:
        raise click.UsageError("--config needs --gpu-memory, such as 80GiB")
    if len(given) not in {1, ranks}:
        raise click.UsageError(f"--gpu-memory is given {len(given)} times for {ranks} GPUs: give it once, or once each")
    weights, reserve = options["weights_gib"], options["reserve_gib"]
    return Memory(
        gpu_memory_bytes=given,
        tensor_parallel=ranks,
        gpu_memory_utilization=options["gpu_memory_utilization"] or runtime.planning.memory_share,
        max_num_batched_tokens=options["max_num_batched_tokens"],
        weights_bytes=None if weights is None else weights * GIB,
        reserve_bytes=None if reserve is None else reserve * GIB,
        kv_cache_bytes=options["kv_cache_memory"],
        runtime=runtime,
    )


def _traffic(options: Mapping[str, Any], shape: LiveShape) -> Traffic:
    """The traffic as given, and what was not given as seen."""
    names = ("prompt_p95", "output_p95", "prompt_p50", "output_p50", "concurrency", "burstiness", "held_now")
    known = {name: options.get(name) or getattr(shape, name, None) for name in names}
    prompt, output = known.pop("prompt_p95"), known.pop("output_p95")
    if prompt is None or output is None:
        lacking = [flag for flag, value in (("--prompt-p95", prompt), ("--output-p95", output)) if value is None]
        why = "the engine has finished no request" if options["url"] else "lengths in tokens"
        raise click.UsageError(f"missing {' and '.join(lacking)} ({why})")
    return Traffic(prompt, output, **known)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_CONFIG_BYTES + 1)
        if len(text) > LARGEST_CONFIG_BYTES:
            raise LiveError(f"{path}: is larger than {LARGEST_CONFIG_BYTES >> 20} MiB: that is no model's config.json")
        config = json.loads(text)
    except OSError as error:
        raise LiveError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise LiveError(f"{path}: is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise LiveError(f"{path}: must hold one JSON object, as a model's config.json does")
    return config
