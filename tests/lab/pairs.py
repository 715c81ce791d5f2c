"""Pairs of a prefill and a decode engine: situations, varied by a seed, and without each of their limits."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tests.lab.regime import Cost, Flags, Load, Regime, Transfer
from tests.lab.vary import FACTOR, varied

SIDES: Final = ("prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """How the two engines are started, what comes, and what it was written to show; `varied` by a seed."""

    about: str
    expect: str
    load: Load
    prefill: Flags = field(default_factory=lambda: Flags(num_gpu_blocks=4096))
    decode: Flags = field(default_factory=lambda: Flags(num_gpu_blocks=4096))
    prefill_cost: Cost = field(default_factory=Cost)
    tokens_per_second: float = 500_000.0
    seconds: int = 200


def _chat(clients: int) -> Load:
    return Load(clients=clients, prompt=(1700, 2000), output=(170, 200), think_seconds=0.5)


SITUATIONS: Final[Mapping[str, Situation]] = {
    "idle": Situation(
        about="Hardly anybody comes.",
        expect="none",
        load=Load(rate=0.05, prompt=(850, 1000), output=(85, 100)),
    ),
    "healthy": Situation(about="Room for all, on both sides.", expect="none", load=_chat(8)),
    "decode-kv": Situation(
        about="The decode engine's pool is too small; the prefill engine has room for all that waits there.",
        expect="decode_kv",
        load=_chat(36),
        prefill=Flags(num_gpu_blocks=16384),
        decode=Flags(num_gpu_blocks=1024),
    ),
    "decode-kv-backs-up": Situation(
        about="The decode engine's pool is too small, and finished prompts fill the prefill engine's.",
        expect="decode_kv",
        load=_chat(48),
        prefill=Flags(num_gpu_blocks=2048),
        decode=Flags(num_gpu_blocks=1024),
    ),
    "transfer": Situation(
        about="The network is slow; both pools have room.",
        expect="transfer",
        load=_chat(16),
        prefill=Flags(num_gpu_blocks=16384),
        decode=Flags(num_gpu_blocks=16384),
        tokens_per_second=2_000.0,
    ),
    "transfer-backs-up": Situation(
        about="The network is slow, and finished prompts fill the prefill engine's pool.",
        expect="transfer",
        load=_chat(40),
        prefill=Flags(num_gpu_blocks=1024),
        decode=Flags(num_gpu_blocks=16384),
        tokens_per_second=2_000.0,
    ),
    "prefill-compute": Situation(
        about="Long prompts and short answers: the prefill engine computes all it can.",
        expect="prefill",
        load=Load(clients=24, prompt=(3400, 4000), output=(17, 20), think_seconds=0.2),
        prefill=Flags(num_gpu_blocks=8192),
    ),
    "prefill-kv": Situation(
        about="The prefill engine's own pool is too small for steps that would be worth it.",
        expect="prefill_kv",
        load=Load(clients=24, prompt=(3400, 4000), output=(17, 20), think_seconds=0.2),
        prefill=Flags(num_gpu_blocks=768, max_num_batched_tokens=65536),
        prefill_cost=Cost(step_seconds=1.0, prefill_token_seconds=1 / 200_000),
    ),
}


@dataclass(frozen=True, slots=True)
class Made:
    """A situation as it is run: a regime for each side, its engines, and the link of each that decodes."""

    name: str
    regimes: Mapping[str, Regime]
    tokens_per_second: float
    engines: tuple[str, ...] = SIDES


def side_of(engine: str) -> str:
    """Return which side an engine is on, by its name."""
    return engine.partition("-")[0]


def made(name: str, seed: int, prefill: int = 1, decode: int = 1) -> Made:
    """Return the situation, as another pair of servers would have it where the seed is not 0.

    With several engines on a side there are as many more clients as engines on average.
    """
    one = SITUATIONS[name]
    many = (prefill + decode) / 2
    load = replace(one.load, clients=round(one.load.clients * many), rate=one.load.rate * many)
    common = {"family": "apart", "about": one.about, "expect": "", "seconds": one.seconds}
    found = {
        "prefill": Regime(
            name=name,
            load=(load,),
            flags=one.prefill,
            cost=one.prefill_cost,
            transfer=Transfer(role="producer"),
            **common,
        ),
        "decode": Regime(name=name, load=(load,), flags=one.decode, transfer=Transfer(role="consumer"), **common),
    }
    rate = one.tokens_per_second
    if seed:
        found = {side: varied(regime, seed) for side, regime in found.items()}
        rng = random.Random(f"{name}/{seed}/link")
        rate *= math.exp(rng.uniform(-math.log(FACTOR), math.log(FACTOR)))
    engines: tuple[str, ...] = SIDES
    if many > 1:
        name += f"-{prefill}p{decode}d"
        each = {"prefill": prefill, "decode": decode}
        engines = tuple(f"{side}-{number}" for side, count in each.items() for number in range(count))
    return Made(f"{name}@{seed}" if seed else name, found, rate, engines)


def counterfactuals(one: Made) -> dict[str, Made]:
    """Return the same pair without each of the limits."""

    def larger(side: str) -> Made:
        regime = one.regimes[side]
        flags = replace(regime.flags, num_gpu_blocks=50 * regime.flags.num_gpu_blocks)
        return replace(one, regimes={**one.regimes, side: replace(regime, flags=flags)})

    regime = one.regimes["prefill"]
    cost = replace(
        regime.cost,
        step_seconds=regime.cost.step_seconds / 2,
        prefill_token_seconds=regime.cost.prefill_token_seconds / 2,
    )
    return {
        "decode_kv": larger("decode"),
        "prefill_kv": larger("prefill"),
        "transfer": replace(one, tokens_per_second=1e12),
        "prefill": replace(one, regimes={**one.regimes, "prefill": replace(regime, cost=cost)}),
    }
