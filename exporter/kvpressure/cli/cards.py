"""`--gpu` and `--model` of `whatif` and `plan`: step times of a card, and the pool that a model leaves on it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvpressure.capacity.cards import CARDS, card_named, model_named, table_for
from kvpressure.capacity.geometry import BLOCK_TOKENS, Geometry, read_geometry
from kvpressure.capacity.gpus import GPUS, Gpu, gpu_named
from kvpressure.capacity.known_models import name_of
from kvpressure.capacity.pool import Memory, pool_from_memory
from kvpressure.cli.model_file import known_model
from kvpressure.model.record import SourceError
from kvpressure.runtimes.runtime import Runtime
from kvpressure.simulation import config_changes as to
from kvpressure.simulation.config_changes import GPU, ConfigChange
from kvpressure.simulation.server import STEP_TOKENS
from kvpressure.simulation.step_table import CardSteps, StepTable


class CardError(SourceError):
    """Nothing is known of a card or a model; the sentence says which names are, and what to do."""

    def __init__(self, sentence: str) -> None:
        super().__init__("no_card", sentence)


@dataclass(frozen=True, slots=True)
class OnCard:
    """A model on cards: its step times, and the tokens that their memory leaves to the pool where that is known."""

    gpu: str
    model: str
    tensor_parallel: int
    table: StepTable
    pool_tokens: float | None

    @property
    def steps(self) -> CardSteps:
        """Return the step times as they were measured."""
        return CardSteps(self.table)


def on_card(gpu: str, model: str, options: Mapping[str, Any], runtime: Runtime) -> OnCard:
    """Return a model on the cards that options name. Raises CardError."""
    card, known = card_named(gpu), model_named(model)
    if card is None:
        raise CardError(f"--gpu {gpu}: no step times are known of it; there are: {', '.join(CARDS.values())}")
    parallel = options.get("tensor_parallel") or 1
    bits = 8 if f"{options.get('kv_cache_dtype') or ''}".startswith(("fp8", "int8")) else 16
    geometry = _geometry(model)
    found = table_for(gpu, model, parallel, bits) or _asked(card, model, parallel, bits, geometry)
    part = gpu_named(gpu) or next(GPUS[name] for name, by in CARDS.items() if by == card)
    pool = None if geometry is None else _pool(geometry, part, options, runtime, parallel)
    return OnCard(card, known or model, parallel, found, pool)


def onto(now: OnCard, other: OnCard) -> ConfigChange:
    """Return the change to another card: its step times, and a pool that is larger by what its memory holds more."""

    def applied(state: to.State) -> to.State:
        server, demand = state
        steps, pool = server.steps, server.pool_tokens
        if isinstance(steps, CardSteps):
            steps = replace(steps, table=other.table)
        if now.pool_tokens and other.pool_tokens:
            pool *= other.pool_tokens / now.pool_tokens
        return replace(server, steps=steps, pool_tokens=pool), demand

    return ConfigChange(GPU, 0.0, applied, name=other.gpu)


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
    return float(pool.tokens(geometry.max_model_len or 8192)) or None


def _asked(card: str, model: str, parallel: int, bits: int, geometry: Geometry | None) -> StepTable:
    # It imports the extra only here: hundreds of megabytes that a table needs nothing of.
    silicon = importlib.import_module("kvpressure.capacity.silicon")
    name = name_of(model.lower()) or model
    made = silicon.Made(model, name, card, 0 if geometry is None else geometry.layers, parallel, kv_bits=bits)
    try:
        found: StepTable = silicon.asked(made)
    except silicon.SiliconError as error:
        raise CardError(f"{error}") from error
    return found
