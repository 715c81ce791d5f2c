"""`--gpu` and `--model` of `whatif` and `plan`: step times of a card, and the pool of a model on it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvpressure.capacity.cards import CARDS, card_named, model_meant, table_for, what_there_is
from kvpressure.capacity.geometry import BLOCK_TOKENS, Geometry, read_geometry
from kvpressure.capacity.gpus import GPUS, Gpu, gpu_named
from kvpressure.capacity.known_models import name_of
from kvpressure.capacity.memory import Memory
from kvpressure.capacity.pool import pool_from_memory
from kvpressure.cli.say import CliError
from kvpressure.config.thresholds import load_thresholds
from kvpressure.runtimes.runtime import Runtime
from kvpressure.simulation import config_changes as to
from kvpressure.simulation.consequences import Span
from kvpressure.simulation.models import modelled
from kvpressure.simulation.server import STEP_TOKENS, Server
from kvpressure.simulation.step_table import CardSteps, StepTable
from kvpressure.simulation.steps import UnknownError, beyond_knee
from kvpressure_planner.capacity.capacity_plan import Plan
from kvpressure_planner.capacity.described import Z95, DescriptionError, MeanAndP95, Traffic, alternatives
from kvpressure_planner.cli.model_file import known_model


@dataclass(frozen=True, slots=True)
class OnCard:
    """A model on cards: its step times, and the tokens of its pool where they are known."""

    gpu: str
    model: str
    tensor_parallel: int
    table: StepTable
    pool_tokens: float | None

    @property
    def steps(self) -> CardSteps:
        """The step times as measured."""
        return CardSteps(self.table)


def on_card(gpu: str, model: str, options: Mapping[str, Any], runtime: Runtime) -> OnCard:
    """Return a model on the cards that options name. Raises CliError."""
    card, known = card_named(gpu), model_meant(model)
    if card is None:
        raise CliError(f"--gpu {gpu}: no step times are known of it; there are: {', '.join(CARDS.values())}")
    parallel = options.get("tensor_parallel") or 1
    dtype = options.get("kv_cache_dtype") or ""
    bits = 8 if f"{dtype}".startswith(("fp8", "int8")) else 16
    geometry = _geometry(known)
    # Without a given cache type, the one that has a table.
    sizes = (bits,) if dtype else (bits, 8)
    step_table = next((table for size in sizes if (table := table_for(gpu, known, parallel, size)) is not None), None)
    step_table = step_table or _computed_table(card, known, parallel, bits, geometry)
    if step_table.kv_bits == 8 and not dtype:
        options = {**options, "kv_cache_dtype": "fp8"}
    part = gpu_named(gpu) or next(GPUS[name] for name, by in CARDS.items() if by == card)
    pool = None if geometry is None else _pool(geometry, part, options, runtime, parallel)
    return OnCard(card, known, parallel, step_table, pool)


def onto(now: OnCard, other: OnCard) -> to.ConfigChange:
    """Return the change to another card: its step times, and the pool scaled by its memory."""

    def applied(state: to.State) -> to.State:
        server, demand = state
        steps, pool = server.steps, server.pool_tokens
        if isinstance(steps, CardSteps):
            steps = replace(steps, table=other.table)
        if now.pool_tokens and other.pool_tokens:
            pool *= other.pool_tokens / now.pool_tokens
        return replace(server, steps=steps, pool_tokens=pool), demand

    return to.ConfigChange(to.GPU, 0.0, applied, name=other.gpu)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for described traffic: tokens a second, mean seconds to first token, and p95 of a request."""

    gpu: str
    model: str
    tokens_per_second: Span
    first_token_seconds: Span
    latency_p95_seconds: Span
    knee_requests: float | None = None
    """Running requests above which a tenth more give less than 5 % more tokens a second; None without such a knee."""


def predicted(plan: Plan, options: Mapping[str, Any], runtime: Runtime) -> Prediction | None:
    """Return the prediction for the traffic and limits of a plan on its GPU, None where it cannot be made.

    It needs a table of card and model, p50 and p95 of the lengths, and the requests in flight.
    """
    lengths = [options[name] for name in ("prompt_p50", "prompt_p95", "output_p50", "output_p95")]
    given = (options["gpu"], options["model"], options["concurrency"], plan.max_num_seqs, *lengths)
    if not all(given) or options["pipeline_parallel"] > 1 or options["data_parallel"] > 1:
        return None
    try:
        # By the name as given: a PCIe card has the memory of the SXM one, and other step times.
        card = on_card(options["gpu"].given, options["model"], options, runtime)
    except CliError:
        return None
    server = Server(plan.running_tokens, card.steps)
    server = replace(server, max_num_seqs=plan.max_num_seqs, step_tokens=plan.max_num_batched_tokens)
    traffic = Traffic(_shape(*lengths[:2]), _shape(*lengths[2:]), clients=round(options["concurrency"]))
    try:
        first, *others = alternatives(server, traffic)
        figures = modelled(first, others, load_thresholds()).figures([])
    except (DescriptionError, UnknownError):
        return None
    if figures is None or figures.first_token_seconds is None:
        return None
    return Prediction(
        card.gpu,
        card.model,
        figures.tokens_per_second,
        figures.first_token_seconds,
        figures.latency_p95,
        first.knee_requests if math.isfinite(first.knee_requests) else None,
    )


def prediction_report(prediction: Prediction | None, max_num_seqs: int) -> Iterator[str]:
    """Yield the lines of the prediction, with the knee where `max_num_seqs` is beyond it."""
    if prediction is None:
        return
    yield from ("", f"Predicted at these limits, with what steps of {prediction.model} take on {prediction.gpu}")
    yield f"  tokens a second: {_range(prediction.tokens_per_second)}"
    yield f"  seconds to first token, mean: {_range(prediction.first_token_seconds)}"
    yield f"  seconds of a request, p95: {_range(prediction.latency_p95_seconds)}"
    if prediction.knee_requests is not None and (beyond := beyond_knee(max_num_seqs, prediction.knee_requests)):
        yield f"  {beyond}"


def _range(span: Span) -> str:
    value, low, high = (
        f"{figure:,.0f}" if figure >= 100 else f"{figure:.2g}" for figure in (span.value, span.low, span.high)
    )
    return f"{value} ({low} to {high})"


def _shape(p50: float, p95: float) -> MeanAndP95:
    """Return mean and p95 of the lognormal distribution with these percentiles."""
    sigma = math.log(max(1.0, p95 / p50)) / Z95
    return MeanAndP95(min(p95, p50 * math.exp(sigma * sigma / 2)), p95)


def _geometry(model: str) -> Geometry | None:
    config = known_model(name_of(model.lower()) or model)
    return None if config is None else read_geometry(config, model)


def _pool(geometry: Geometry, gpu: Gpu, options: Mapping[str, Any], runtime: Runtime, parallel: int) -> float | None:
    memory = Memory(
        gpu_memory_bytes=(gpu.memory_bytes,),
        tensor_parallel=parallel,
        gpu=gpu.name,
        gpu_memory_utilization=options.get("gpu_memory_utilization") or runtime.planning.memory_share,
        runtime=runtime,
    )
    step = int(options.get("max_num_batched_tokens") or STEP_TOKENS)
    cost = geometry.cost(options.get("kv_cache_dtype") or "auto", parallel, BLOCK_TOKENS)
    pool, _ = pool_from_memory(geometry, cost, memory, step)
    return pool.running_tokens(geometry.max_model_len or 8192) or None


def _computed_table(card: str, model: str, parallel: int, bits: int, geometry: Geometry | None) -> StepTable:
    # Imports an extra of hundreds of megabytes, which packaged tables do not need.
    silicon = importlib.import_module("kvpressure.capacity.silicon")
    name = name_of(model.lower()) or model
    layers, experts = (0, False) if geometry is None else (geometry.layers, bool(geometry.experts))
    made = silicon.Made(model, name, card, layers, parallel, kv_bits=bits, experts=experts)
    try:
        table: StepTable = silicon.computed(made)
    except silicon.SiliconError as error:
        raise CliError(f"{error}; {what_there_is(model)}") from error
    return table
