"""Scenarios as data: the demo's incident, and seeded episodes of every cause."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from bench.simulator.config import EngineConfig
from bench.simulator.load import ClosedLoop, Label, Lengths, OpenLoop, Phase, Traffic
from bench.simulator.profiles import H100, H200, LLAMA_8B, MI300X, gpu_engine
from bench.simulator.service import Scenario

CAUSES: Final[tuple[Label, ...]] = (
    "idle",
    "healthy",
    "kv_cache_pressure",
    "concurrency_bound",
    "compute_bound",
    "host_bound",
    "stuck",
)
SEARCH: Final = Traffic(Lengths(2000, "lognormal", 0.3), Lengths(60, "lognormal", 0.3))
"""Questions over retrieved text: long prompts and short answers, so prefill keeps the GPU busy."""
AGENT: Final = Traffic(Lengths(24_000, "normal", 0.1), Lengths(1000, "normal", 0.2))
"""Agents that carry their history along: three of them fill the demo's pool."""


def demo() -> Scenario:
    """Idle, healthy, building, collapsed, recovered, in five minutes.

    Start-up profiling reserved 52 GB of the device for the inputs of a multimodal 8B model, and an eager-mode host
    needs 28 ms a step. So the pool is small, the device's memory always full, and a batch of three leaves compute idle.
    """
    engine = gpu_engine(
        LLAMA_8B, H100, host_seconds=28e-3, activation_bytes=52e9, max_num_seqs=64, max_num_batched_tokens=4096
    )
    busy, fading, agent = OpenLoop(SEARCH, 7.5), OpenLoop(SEARCH, 5.0, 3.0), ClosedLoop(AGENT, 1, start_seconds=3.0)
    return Scenario(
        "demo",
        engine,
        (
            Phase("idle", 30.0, note="idle: no request, yet GPU memory is high; the KV pool is allocated at start"),
            Phase("healthy", 75.0, (busy,), note="healthy: questions over documents; a big batch keeps the GPU busy"),
            Phase("healthy", 20.0, (fading, agent), note="building: the first agent with a long history"),
            Phase("healthy", 15.0, (OpenLoop(SEARCH, 2.0), agent), note="building: a second one; the pool fills"),
            Phase("kv_cache_pressure", 90.0, (ClosedLoop(AGENT, 14),), note="collapsed: only three fit, the rest wait"),
            Phase("healthy", 60.0, (busy,), hangs_up=True, note="recovered: long requests are refused at the edge"),
        ),
    )


def episode(cause: Label, seed: int) -> Scenario:
    """Ten minutes around one cause: healthy for 150 s, the cause for 300 s, healthy again for 150 s.

    Hardware, lengths and load vary with the seed. An `idle` or `healthy` episode is that throughout. ValueError for a
    cause without an episode.
    """
    if cause not in CAUSES:
        raise ValueError(f"no episode of {cause!r}: there are {', '.join(CAUSES)}")
    rng = random.Random(f"{cause}/{seed}")
    engine = _engine(rng)
    if cause == "concurrency_bound":
        engine = replace(engine, max_num_seqs=rng.choice((8, 16, 32)))
    calm = (_healthy(rng, engine),)
    before = Phase("healthy", 150.0, calm)
    after = Phase("healthy", 150.0, calm, hangs_up=True)
    middle = _MIDDLES[cause](rng, engine, calm[0])
    phases = (replace(middle, seconds=600.0),) if cause in {"idle", "healthy"} else (before, middle, after)
    return Scenario(f"{cause}-{seed}", engine, phases)


def _engine(rng: random.Random) -> EngineConfig:
    """8B engines with pools of 60 k to 300 k tokens and hosts that need 12 to 22 ms a step."""
    device = rng.choice((H100, H200, MI300X))
    pool_tokens = rng.uniform(60e3, 300e3)
    spare = device.memory_bytes * 0.92 - 2 * LLAMA_8B.parameters - pool_tokens * LLAMA_8B.kv_bytes_per_token
    return gpu_engine(
        LLAMA_8B,
        device,
        host_seconds=rng.uniform(12e-3, 22e-3),
        activation_bytes=spare,
        ranks=rng.choice((1, 1, 2)),
        max_num_seqs=rng.choice((64, 128, 256)),
    )


def _healthy(rng: random.Random, engine: EngineConfig) -> ClosedLoop:
    """Clients whose requests take 15 to 35 % of the pool and at most 60 % of the sequences."""
    traffic = Traffic(
        Lengths(rng.uniform(200, 900), "lognormal", 0.3), Lengths(rng.uniform(100, 300), "lognormal", 0.3)
    )
    fitting = engine.capacity_tokens / (traffic.prompt.mean + traffic.output.mean)
    clients = min(rng.uniform(0.15, 0.35) * fitting, 0.6 * engine.max_num_seqs, 48)
    return ClosedLoop(traffic, max(2, int(clients)) * engine.ranks, think_seconds=rng.uniform(0.5, 2.0))


def _kv_cache_pressure(rng: random.Random, engine: EngineConfig, _: ClosedLoop) -> Phase:
    """Demand of two to four pools: of long prompts that queue, or of long answers that preempt each other."""
    share = rng.uniform(0.08, 0.3)
    size = min(share * engine.capacity_tokens, 0.8 * engine.max_model_len)
    prompt = size * rng.choice((0.85, 0.3))
    traffic = Traffic(Lengths(prompt, "normal", 0.15), Lengths(min(size - prompt, 6000), "normal", 0.2))
    clients = rng.uniform(2, 4) * engine.capacity_tokens / (prompt + traffic.output.mean)
    return Phase("kv_cache_pressure", 300.0, (ClosedLoop(traffic, int(clients) * engine.ranks, start_seconds=2.0),))


def _concurrency_bound(rng: random.Random, engine: EngineConfig, _: ClosedLoop) -> Phase:
    """Two to four times `max_num_seqs` clients with short requests, half the pool at most."""
    room = 0.5 * engine.capacity_tokens / engine.max_num_seqs
    prompt, output = min(rng.uniform(50, 300), 0.4 * room), min(rng.uniform(100, 400), 0.4 * room)
    traffic = Traffic(Lengths(prompt, "normal", 0.2), Lengths(output, "normal", 0.2))
    clients = int(rng.uniform(2, 4) * engine.max_num_seqs) * engine.ranks
    return Phase("concurrency_bound", 300.0, (ClosedLoop(traffic, clients, start_seconds=2.0),))


def _compute_bound(rng: random.Random, engine: EngineConfig, _: ClosedLoop) -> Phase:
    """Prompts without end and hardly an answer; all of them together fit half the pool."""
    traffic = Traffic(Lengths(rng.uniform(800, 2500), "normal", 0.2), Lengths(rng.uniform(20, 60), "normal", 0.2))
    clients = min(0.5 * engine.capacity_tokens / (traffic.prompt.mean + traffic.output.mean), 0.5 * engine.max_num_seqs)
    return Phase("compute_bound", 300.0, (ClosedLoop(traffic, int(clients) * engine.ranks, start_seconds=2.0),))


def _host_bound(rng: random.Random, engine: EngineConfig, calm: ClosedLoop) -> Phase:
    """The API process needs 100 to 250 ms a request, so a handful of them is ever in the engine."""
    factor = rng.uniform(0.1, 0.25) / engine.frontend_seconds_per_request
    loop = ClosedLoop(calm.traffic, 60, start_seconds=2.0)
    return Phase("host_bound", 300.0, (loop,), frontend_factor=factor)


_MIDDLES: Final[dict[Label, Callable[[random.Random, EngineConfig, ClosedLoop], Phase]]] = {
    "idle": lambda _rng, _engine, _calm: Phase("idle", 300.0),
    "healthy": lambda _rng, _engine, calm: Phase("healthy", 300.0, (calm,)),
    "kv_cache_pressure": _kv_cache_pressure,
    "concurrency_bound": _concurrency_bound,
    "compute_bound": _compute_bound,
    "host_bound": _host_bound,
    "stuck": lambda _rng, _engine, calm: Phase("stuck", 300.0, (calm,), fault="stuck"),
}
