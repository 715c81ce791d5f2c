"""Scenarios as data: the demo's incident, and seeded episodes of every cause, clear ones and hard ones.

`episode` shows each cause at its clearest. The cases are harder: other models, hosts and versions, mixed and cached
traffic, ramps, bursts, restarts; they come close to another cause and are none of it. A phase's label says what its
load is meant to do: what it really does, the scheduler has to tell.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from bench.simulator.clients import ClosedLoop, Label, Lengths, OpenLoop, Phase, Traffic
from bench.simulator.config import (
    H100,
    H200,
    LLAMA_8B,
    LLAMA_70B,
    MI300X,
    TINY_CPU,
    TINY_CPU_0_12,
    Device,
    EngineConfig,
    Model,
    gpu_engine,
)
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


CAUSE_SECONDS: Final = 240.0
PRESSURE_SECONDS: Final = 480.0
"""Longer than the `for: 5m` of the rules people use today, so that they can fire."""
RESTART_SECONDS: Final = 20.0


def _loop(engine: EngineConfig, prompt: float, output: float, demand: float, spread: float = 0.2) -> ClosedLoop:
    """Clients without a pause whose requests need `demand` pools at their full length."""
    traffic = Traffic(Lengths(prompt, "normal", spread), Lengths(output, "normal", spread))
    clients = max(1, round(demand * engine.capacity_tokens / (prompt + output)))
    return ClosedLoop(traffic, clients * engine.ranks, start_seconds=2.0)


def _sized(engine: EngineConfig, share: float, prompt_share: float) -> tuple[float, float]:
    """Prompt and output tokens of a request that takes `share` of the pool and that the model allows."""
    size = min(share * engine.capacity_tokens, 0.85 * engine.max_model_len)
    return prompt_share * size, (1 - prompt_share) * size


def calm(rng: random.Random, engine: EngineConfig, share: float = 0.0) -> ClosedLoop:
    """Chat that takes `share` of the pool (0: 10 to 40 %) and at most 60 % of the sequences, with pauses."""
    room = engine.capacity_tokens
    prompt, output = min(rng.uniform(100, 900), 0.04 * room), min(rng.uniform(80, 300), 0.03 * room)
    traffic = Traffic(Lengths(prompt, "lognormal", 0.3), Lengths(output, "lognormal", 0.3))
    clients = min((share or rng.uniform(0.1, 0.4)) * room / (prompt + output), 0.6 * engine.max_num_seqs, 40)
    return ClosedLoop(traffic, max(2, int(clients)) * engine.ranks, think_seconds=rng.uniform(0.3, 2.0))


# -- healthy, and near to something else


def single_slow(rng: random.Random, engine: EngineConfig) -> Phase:
    """A single client with long answers and short pauses."""
    prompt, output = _sized(engine, 0.2, 0.3)
    traffic = Traffic(Lengths(prompt), Lengths(output))
    return Phase("healthy", CAUSE_SECONDS, (ClosedLoop(traffic, 1, think_seconds=rng.uniform(0.5, 3.0)),))


def mixed(rng: random.Random, engine: EngineConfig) -> Phase:
    """One request in ten is long; all of them fit."""
    prompt, output = _sized(engine, 0.15, 0.9)
    long = ClosedLoop(Traffic(Lengths(prompt), Lengths(output)), engine.ranks, think_seconds=1.0)
    return Phase("healthy", CAUSE_SECONDS, (calm(rng, engine, 0.25), long))


def full_pool(rng: random.Random, engine: EngineConfig) -> Phase:
    """Requests of one size that together fill 80 to 96 % of the pool and never more: nobody waits for blocks."""
    count = rng.randint(4, min(10, engine.max_num_seqs))
    block = engine.block_size
    size = min(int(rng.uniform(0.85, 0.97) * engine.capacity_tokens / count) // block * block, engine.max_model_len)
    prompt = size // 2
    traffic = Traffic(Lengths(prompt), Lengths(size - prompt - 1))
    return Phase("healthy", PRESSURE_SECONDS, (ClosedLoop(traffic, count, start_seconds=1.0),))


def cached_chat(rng: random.Random, engine: EngineConfig) -> Phase:
    """Everyone shares a long system prompt, which counts once in the pool and many times in the prompt lengths."""
    prefix = int(0.2 * min(engine.capacity_tokens, engine.max_model_len))
    own = 0.02 * engine.capacity_tokens
    traffic = Traffic(
        Lengths(prefix + own, "normal", 0.05), Lengths(own), prefix_tokens=prefix, prefix_share=rng.choice((0.9, 1.0))
    )
    return Phase("healthy", CAUSE_SECONDS, (ClosedLoop(traffic, min(8, engine.max_num_seqs // 2), 0.5),))


def rare_preemption(rng: random.Random, engine: EngineConfig) -> Phase:
    """A well used pool: now and then a peak costs one request in some hundreds its place, and nobody waits."""
    clients = max(8, engine.max_num_seqs // 2)
    size = rng.uniform(1.15, 1.22) * engine.capacity_tokens / clients
    traffic = Traffic(Lengths(0.4 * size, "lognormal", 0.3), Lengths(0.6 * size, "lognormal", 0.3))
    loop = ClosedLoop(traffic, clients * engine.ranks, start_seconds=10.0)
    return Phase("healthy", PRESSURE_SECONDS, (loop,))


def bursts_that_fit(rng: random.Random, engine: EngineConfig) -> Phase:
    """A burst every half minute that fits the pool and the batch."""
    load = calm(rng, engine, 0.2)
    burst = max(2, min(load.clients, int(0.3 * engine.max_num_seqs)))
    return Phase("healthy", CAUSE_SECONDS, (OpenLoop(load.traffic, 1.0, burst=burst, burst_every_seconds=30.0),))


def ramp_that_fits(rng: random.Random, engine: EngineConfig) -> tuple[Phase, ...]:
    """From a tenth to four tenths of the pool in four steps."""
    return tuple(Phase("healthy", CAUSE_SECONDS / 4, (calm(rng, engine, 0.1 * step),)) for step in range(1, 5))


def rollout(rng: random.Random, engine: EngineConfig) -> tuple[Phase, ...]:
    """A restart under light load."""
    load = (calm(rng, engine),)
    return (
        Phase("healthy", 90.0, load),
        Phase("restarting", RESTART_SECONDS, fault="restart"),
        Phase("healthy", 150.0, load),
    )


def lull(rng: random.Random, engine: EngineConfig) -> tuple[Phase, ...]:
    """Three minutes without a request, traffic, and three minutes without again."""
    return Phase("idle", 180.0, hangs_up=True), Phase("healthy", 90.0, (calm(rng, engine),)), Phase("idle", 180.0)


def never_asked(_: random.Random, __: EngineConfig) -> Phase:
    """Nobody asks."""
    return Phase("idle", CAUSE_SECONDS, hangs_up=True)


# -- KV cache pressure


def long_prompts(rng: random.Random, engine: EngineConfig) -> Phase:
    """Two to four pools of long prompts that queue."""
    prompt, output = _sized(engine, rng.uniform(0.1, 0.35), rng.uniform(0.7, 0.95))
    return Phase("kv_cache_pressure", PRESSURE_SECONDS, (_loop(engine, prompt, output, rng.uniform(2, 4)),))


def never_preempts(rng: random.Random, engine: EngineConfig) -> Phase:
    """Long prompts of one length and short answers: some fit, one more does not, and no answer outgrows the rest."""
    fitting = max(3, math.ceil(0.88 * engine.capacity_tokens / (0.8 * engine.max_model_len)))
    size, growth = 0.88 * engine.capacity_tokens / fitting, 0.06 * engine.capacity_tokens / fitting
    traffic = Traffic(Lengths(size, "normal", 0.01), Lengths(growth, "uniform", 0.5))
    loop = ClosedLoop(traffic, rng.randint(9, 16) * engine.ranks, start_seconds=2.0)
    return Phase("kv_cache_pressure", PRESSURE_SECONDS, (loop,))


def long_answers(rng: random.Random, engine: EngineConfig) -> Phase:
    """Two to three pools of long answers that preempt each other."""
    prompt, output = _sized(engine, rng.uniform(0.06, 0.2), rng.uniform(0.1, 0.4))
    return Phase("kv_cache_pressure", PRESSURE_SECONDS, (_loop(engine, prompt, output, rng.uniform(2, 3)),))


def mixed_pressure(rng: random.Random, engine: EngineConfig) -> Phase:
    """A tenth of the clients is long and takes twice the pool; short chat keeps finishing in between."""
    prompt, output = _sized(engine, rng.uniform(0.2, 0.35), 0.85)
    return Phase(
        "kv_cache_pressure",
        PRESSURE_SECONDS,
        (calm(rng, engine, 0.2), _loop(engine, prompt, output, rng.uniform(2, 3))),
    )


def barely_fits(rng: random.Random, engine: EngineConfig) -> Phase:
    """Each request takes more than half of the pool, so they go one by one."""
    prompt, output = _sized(engine, rng.uniform(0.55, 0.85), rng.choice((0.3, 0.9)))
    return Phase("kv_cache_pressure", PRESSURE_SECONDS, (_loop(engine, prompt, output, rng.uniform(3, 6), 0.05),))


def ramp(rng: random.Random, engine: EngineConfig) -> tuple[Phase, ...]:
    """More and more clients with the same long requests, from half of a pool to three."""
    prompt, output = _sized(engine, 0.12, rng.choice((0.3, 0.85)))
    steps = (_loop(engine, prompt, output, demand) for demand in (0.5, 1.0, 1.5, 2.0, 3.0))
    return tuple(Phase("kv_cache_pressure", 120.0, (step,)) for step in steps)


def bursts(rng: random.Random, engine: EngineConfig) -> Phase:
    """Every 150 s three to nine pools of demand at once, on top of chat."""
    prompt, output = _sized(engine, 0.15, 0.7)
    load = calm(rng, engine, 0.15)
    size = rng.randint(20, 60)
    burst = OpenLoop(_loop(engine, prompt, output, 1.0).traffic, 0.0, burst=size, burst_every_seconds=150.0)
    return Phase("kv_cache_pressure", PRESSURE_SECONDS, (load, burst))


def restarted(rng: random.Random, engine: EngineConfig) -> tuple[Phase, ...]:
    """A restart in the middle, which helps for as long as the pool takes to fill."""
    pressed = replace(long_prompts(rng, engine), seconds=PRESSURE_SECONDS / 2)
    return pressed, Phase("restarting", RESTART_SECONDS, fault="restart"), pressed


def cached_pressure(rng: random.Random, engine: EngineConfig) -> Phase:
    """A shared prefix, and each conversation's own part of a seventh of the pool."""
    prefix = int(0.1 * min(engine.capacity_tokens, engine.max_model_len))
    prompt, output = _sized(engine, 0.14, 0.7)
    loop = _loop(engine, prompt, output, rng.uniform(2, 3))
    return Phase(
        "kv_cache_pressure",
        PRESSURE_SECONDS,
        (
            replace(
                loop,
                traffic=Traffic(
                    Lengths(prefix + prompt, "normal", 0.1), Lengths(output), prefix_tokens=prefix, prefix_share=0.9
                ),
            ),
        ),
    )


# -- the sequence cap


def _capped(rng: random.Random, engine: EngineConfig, pool_share: float) -> Phase:
    """Clients for two to three times the cap, whose requests at full length take `pool_share` of the pool."""
    size = min(pool_share * engine.capacity_tokens / engine.max_num_seqs, 0.8 * engine.max_model_len)
    prompt = max(8.0, size * rng.uniform(0.3, 0.6))
    traffic = Traffic(Lengths(prompt, "normal", 0.1), Lengths(max(16.0, size - prompt), "normal", 0.1))
    clients = int(rng.uniform(2, 3) * engine.max_num_seqs) * engine.ranks
    return Phase("concurrency_bound", CAUSE_SECONDS, (ClosedLoop(traffic, clients, start_seconds=2.0),))


def small_cap(rng: random.Random, engine: EngineConfig) -> Phase:
    """The cap is reached with a pool hardly used."""
    return _capped(rng, engine, rng.uniform(0.1, 0.4))


def cap_and_much_kv(rng: random.Random, engine: EngineConfig) -> Phase:
    """Usage of 0.5 to 0.9 behind the cap: all that runs fits, and so would the next one."""
    return _capped(rng, engine, rng.uniform(0.65, 0.9))


def cap_restarted(rng: random.Random, engine: EngineConfig) -> tuple[Phase, ...]:
    """The same, with a restart in the middle."""
    phase = replace(small_cap(rng, engine), seconds=150.0)
    return phase, Phase("restarting", RESTART_SECONDS, fault="restart"), phase


# -- compute, host, stuck


def prefill(rng: random.Random, engine: EngineConfig) -> Phase:
    """Prompts without end and hardly an answer; together they fit a third of the pool."""
    prompt = min(rng.uniform(800, 4000), 0.05 * engine.capacity_tokens, 0.5 * engine.max_model_len)
    loop = _loop(engine, prompt, rng.uniform(4, 40), 0.35)
    return Phase("compute_bound", CAUSE_SECONDS, (replace(loop, clients=min(loop.clients, engine.max_num_seqs // 2)),))


def prefill_open(rng: random.Random, engine: EngineConfig) -> Phase:
    """Chat beside a flood of prompts."""
    flood = prefill(rng, engine).loads[0]
    return Phase("compute_bound", CAUSE_SECONDS, (calm(rng, engine, 0.15), flood))


def slow_front(rng: random.Random, engine: EngineConfig) -> Phase:
    """The API process tokenizes on a throttled CPU: 80 to 300 ms a request."""
    factor = rng.uniform(0.08, 0.3) / engine.frontend_seconds_per_request
    loop = ClosedLoop(calm(rng, engine).traffic, 50, start_seconds=2.0)
    return Phase("host_bound", CAUSE_SECONDS, (loop,), frontend_factor=factor)


def hung(rng: random.Random, engine: EngineConfig) -> Phase:
    """Chat clients wait for an engine that does nothing."""
    return Phase("stuck", CAUSE_SECONDS, (calm(rng, engine),), fault="stuck")


def hung_alone(_: random.Random, engine: EngineConfig) -> Phase:
    """A single client waits for the engine that never answers."""
    size = 0.05 * engine.capacity_tokens
    return Phase("stuck", CAUSE_SECONDS, (ClosedLoop(Traffic(Lengths(size), Lengths(50)), 1),), fault="stuck")


def hung_then_restarted(rng: random.Random, engine: EngineConfig) -> tuple[Phase, ...]:
    """An operator restarts it."""
    return hung(rng, engine), Phase("restarting", RESTART_SECONDS, fault="restart")


BEFORE_SECONDS: Final = 120.0
AFTER_SECONDS: Final = 120.0

Middle = Callable[[random.Random, EngineConfig], "Phase | tuple[Phase, ...]"]


def engine_of(rng: random.Random) -> EngineConfig:
    """An 8B or 70B engine on a slow or a fast host, or the CPU engine of the recordings; some without reservation."""
    kind = rng.choice(("eager", "fast", "large", "tiny", "tiny"))
    if kind == "tiny":
        return _tiny(rng)
    device = rng.choice((H100, H200, MI300X))
    host_seconds = rng.uniform(12e-3, 22e-3) if kind == "eager" else rng.uniform(2e-3, 5e-3)
    model, gpus = (LLAMA_70B, rng.choice((4, 8))) if kind == "large" else (LLAMA_8B, 1)
    engine = _with_pool(rng, model, device, gpus, host_seconds)
    return replace(
        engine,
        ranks=1 if kind == "large" else rng.choice((1, 1, 2)),
        max_num_seqs=rng.choice((64, 128, 256)),
        max_num_batched_tokens=rng.choice((2048, 8192)),
        reserve_full_prompt=rng.random() < 0.7,
    )


def _with_pool(rng: random.Random, model: Model, device: Device, gpus: int, host_seconds: float) -> EngineConfig:
    """Activations take what a pool of 50 k to 250 k tokens leaves."""
    pool_bytes = rng.uniform(50e3, 250e3) * model.kv_bytes_per_token
    spare = device.memory_bytes * 0.92 - (2 * model.parameters + pool_bytes) / gpus
    return gpu_engine(model, device, gpus, host_seconds=host_seconds, activation_bytes=spare)


def _tiny(rng: random.Random) -> EngineConfig:
    base = rng.choice((TINY_CPU, TINY_CPU, TINY_CPU_0_12))
    ranks = rng.choice((1, 1, 2)) if base is TINY_CPU else 1
    return replace(
        base,
        num_blocks=rng.choice((128, 256, 512)),
        max_num_seqs=rng.choice((16, 32)),
        ranks=ranks,
        api_servers=ranks,
    )


def _low_cap(engine: EngineConfig) -> EngineConfig:
    return replace(engine, max_num_seqs=min(engine.max_num_seqs, 16))


CASES: Final[dict[Label, dict[str, Middle]]] = {
    "idle": {"never-asked": never_asked, "lull": lull},
    "healthy": {
        "single-slow": single_slow,
        "mixed": mixed,
        "rare-preemption": rare_preemption,
        "full-pool": full_pool,
        "cached-chat": cached_chat,
        "bursts-that-fit": bursts_that_fit,
        "ramp-that-fits": ramp_that_fits,
        "rollout": rollout,
    },
    "kv_cache_pressure": {
        "long-prompts": long_prompts,
        "long-answers": long_answers,
        "no-reservation": long_answers,
        "mixed-pressure": mixed_pressure,
        "never-preempts": never_preempts,
        "barely-fits": barely_fits,
        "ramp": ramp,
        "bursts": bursts,
        "restarted": restarted,
        "cached-pressure": cached_pressure,
    },
    "concurrency_bound": {
        "small-cap": small_cap,
        "cap-much-kv": cap_and_much_kv,
        "cap-restarted": cap_restarted,
    },
    "compute_bound": {"prefill": prefill, "prefill-and-chat": prefill_open},
    "host_bound": {"slow-front": slow_front},
    "stuck": {"hung": hung, "hung-alone": hung_alone, "hung-then-restarted": hung_then_restarted},
}


def case(cause: Label, seed: int) -> Scenario:
    """A hard episode: healthy, then one of the cause's cases (by turns), then healthy again. KeyError without cases."""
    names = sorted(CASES[cause])
    name = names[seed % len(names)]
    rng = random.Random(f"{cause}/{name}/{seed}")
    engine = engine_of(rng)
    if cause == "compute_bound" and engine.gpu is None:
        engine = replace(_with_pool(rng, LLAMA_8B, H100, 1, rng.uniform(2e-3, 15e-3)), max_num_seqs=128)
    if cause == "concurrency_bound":
        engine = _low_cap(engine)
    if name in {"no-reservation", "never-preempts"}:
        engine = replace(engine, reserve_full_prompt=name == "never-preempts")
    usual = (calm(rng, engine),)
    middle = CASES[cause][name](rng, engine)
    phases = (middle,) if isinstance(middle, Phase) else middle
    before = Phase("healthy", BEFORE_SECONDS, usual)
    after = Phase("healthy", AFTER_SECONDS, usual, hangs_up=True)
    return Scenario(f"{name}-{seed}", engine, (before, *phases, after))
