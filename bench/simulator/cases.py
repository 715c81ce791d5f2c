"""Harder episodes of every cause: other models, hosts and versions, mixed and cached traffic, ramps, bursts, restarts.

`scenarios.episode` shows each cause at its clearest; these come close to another cause and are none of it. A phase's
label says what its load is meant to do: what it really does, the scheduler has to tell.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from bench.simulator import case_loads as loads
from bench.simulator.config import EngineConfig
from bench.simulator.load import Label, Phase
from bench.simulator.profiles import (
    H100,
    H200,
    LLAMA_8B,
    LLAMA_70B,
    MI300X,
    TINY_CPU,
    TINY_CPU_0_12,
    Device,
    Model,
    gpu_engine,
)
from bench.simulator.service import Scenario

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
    "idle": {"never-asked": loads.never_asked, "lull": loads.lull},
    "healthy": {
        "single-slow": loads.single_slow,
        "mixed": loads.mixed,
        "rare-preemption": loads.rare_preemption,
        "full-pool": loads.full_pool,
        "cached-chat": loads.cached_chat,
        "bursts-that-fit": loads.bursts_that_fit,
        "ramp-that-fits": loads.ramp_that_fits,
        "rollout": loads.rollout,
    },
    "kv_cache_pressure": {
        "long-prompts": loads.long_prompts,
        "long-answers": loads.long_answers,
        "no-reservation": loads.long_answers,
        "mixed-pressure": loads.mixed_pressure,
        "never-preempts": loads.never_preempts,
        "barely-fits": loads.barely_fits,
        "ramp": loads.ramp,
        "bursts": loads.bursts,
        "restarted": loads.restarted,
        "cached-pressure": loads.cached_pressure,
    },
    "concurrency_bound": {
        "small-cap": loads.small_cap,
        "cap-much-kv": loads.cap_and_much_kv,
        "cap-restarted": loads.cap_restarted,
    },
    "compute_bound": {"prefill": loads.prefill, "prefill-and-chat": loads.prefill_open},
    "host_bound": {"slow-front": loads.slow_front},
    "stuck": {"hung": loads.hung, "hung-alone": loads.hung_alone, "hung-then-restarted": loads.hung_then_restarted},
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
    usual = (loads.calm(rng, engine),)
    middle = CASES[cause][name](rng, engine)
    phases = (middle,) if isinstance(middle, Phase) else middle
    before = Phase("healthy", BEFORE_SECONDS, usual)
    after = Phase("healthy", AFTER_SECONDS, usual, hangs_up=True)
    return Scenario(f"{name}-{seed}", engine, (before, *phases, after))
