"""Regimes about the working set, by name: the pool's second job is to keep what finished requests have computed.

They are made of few numbers, not read from files: who comes, and how large the pool is beside what its sessions hold
(`SHARES`). With a seed (`workingset-calm-060~3`) lengths, numbers of clients and thinking times are others.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from tests.lab.regime import Cost, Fault, Flags, Load, Regime
from tests.lab.trace import requests

FAMILY: Final = "workingset"
MARK: Final = "~"
"""`workingset-calm-060~3` is `workingset-calm-060` as seed 3 has it."""
SHARES: Final = (0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 2.0, 3.0)
SECONDS: Final = 300
TOOLS: Final = (1.0, 30.0)
PEOPLE: Final = (20.0, 300.0)
FACTOR: Final = 1.3
"""A seed multiplies numbers by between 1 / this and this, evenly on a logarithmic scale."""
BLOCK_SIZES: Final = (16, 16, 32)
COST: Final = Cost(step_seconds=0.03, prefill_token_seconds=1 / 16_000, sequence_seconds=0.0002)
CARD: Final = Cost(
    step_seconds=0.012, prefill_token_seconds=1 / 40_000, sequence_seconds=6e-5, context_token_seconds=6e-8
)
"""A faster card for the recorded chat, whose prompts of 13,000 tokens would be too much for the other one."""
LONGEST: Final = 32_768


def agents(clients: int, think: tuple[float, float]) -> Load:
    """Agents whose contexts grow from 8,000 to 30,000 tokens, 1,500 a turn; a system prompt is common to all."""
    return Load(
        clients=clients,
        think=think,
        prefix=1_500,
        prompt=(8_000, 8_000),
        words=(1_250, 1_450),
        output=(100, 200),
        turns=(15, 15),
        longest=30_000,
    )


def people(clients: int) -> Load:
    """People who chat: three products, each with its own system prompt."""
    return Load(
        clients=clients,
        think=PEOPLE,
        prefix=2_000,
        prefix_groups=3,
        prompt=(2_200, 6_000),
        words=(50, 1_200),
        output=(100, 500),
        turns=(4, 12),
        longest=16_000,
    )


def held(load: Load) -> float:
    """Tokens that the sessions of a load hold at a time, on average: what a pool must keep to find all of it."""
    turns, grown = sum(load.turns) / 2, sum(load.words) / 2 + sum(load.output) / 2
    if load.longest:
        turns = min(turns, 1 + (load.longest - sum(load.prompt) / 2) / grown)
    own = sum(load.prompt) / 2 - load.prefix + (turns - 1) / 2 * grown
    return load.clients * own + load.prefix_groups * load.prefix


def family(seed: int = 0) -> dict[str, Regime]:
    """Every regime of the family by name, as that seed has them; 0: as written."""
    mark = f"{MARK}{seed}" if seed else ""
    made = (_as_seed_has_it(regime, seed) for regime in _written())
    return {f"{regime.name}{mark}": replace(regime, name=f"{regime.name}{mark}") for regime in made}


def find(name: str) -> Regime | None:
    """The regime of that name, with the seed it names; None when there is none."""
    return family(int(name.partition(MARK)[2] or 0)).get(name)


def _written() -> Iterator[Regime]:
    calm, busy, chat = agents(40, (40.0, 120.0)), agents(12, TOOLS), people(60)
    for share in SHARES:
        yield _regime(f"calm-{share * 100:03.0f}", "Agents who think for long: few run at a time.", share, calm)
    for share in SHARES:
        yield _regime(f"busy-{share * 100:03.0f}", "Agents whose tools answer soon: many run at a time.", share, busy)
    table = replace(agents(40, (7.0, 40.0)), prefix=0)
    yield _regime("table", "Agents who think for twenty seconds: on which pool does it collapse?", 0.6, table)
    for share in (0.3, 1.0, 2.0):
        yield _regime(f"people-{share * 100:03.0f}", "People in a chat, three system prompts.", share, chat)
    joining = _joining(agents(36, (50.0, 150.0)))
    joins = _regime("joins", "Nine agents have room; after three minutes three times as many come.", 0.5, *joining)
    yield replace(joins, seconds=480)
    cold = Load(clients=10, prompt=(6_000, 12_000), output=(100, 300), think_seconds=5.0)
    yield replace(_regime("cold", "Every prompt is another document.", 1.0, calm), load=(cold,), flags=_flags(200_000))
    resets = tuple(Fault(kind="reset_prefix_cache", at=at, until=at + 1) for at in (100, 190))
    yield replace(_regime("reset", "Room for all, and the cache is reset twice.", 1.5, calm), fault=resets)
    restart = (Fault(kind="restart", at=120, until=150),)
    yield replace(_regime("restart", "Room for all, and the server is restarted.", 1.5, calm), fault=restart)
    off = _regime("uncached", "Room for all, and prefix caching is off.", 1.5, calm)
    yield replace(off, flags=replace(off.flags, enable_prefix_caching=False))
    scattered = replace(calm, clients=160, replicas=4)
    yield _regime("scattered", "One of four replicas; the router sends every turn to any.", 1.2, scattered)
    for name, share in (("light", 0.05), ("fifth", 0.2), ("heavy", 0.45)):
        yield _trace(f"trace-{name}", share, 400_000)


def _joining(load: Load) -> tuple[Load, Load]:
    first = round(load.clients / 4)
    return replace(load, clients=first), replace(load, clients=load.clients - first, begin=180)


def _regime(name: str, about: str, share: float, *load: Load) -> Regime:
    tokens = share * sum(map(held, load))
    return Regime(
        name=f"{FAMILY}-{name}",
        family=FAMILY,
        about=about,
        expect="",
        everywhere=True,
        seconds=SECONDS,
        flags=_flags(tokens),
        cost=COST,
        load=load,
    )


def _trace(name: str, share: float, tokens: float) -> Regime:
    regime = _regime(name, f"{share:.0%} of the sessions of a production chat.", 1.0, Load(trace="mooncake"))
    flags = replace(_flags(tokens), max_model_len=131_072, max_num_batched_tokens=16_384)
    return replace(regime, flags=flags, cost=CARD, load=(Load(trace="mooncake", share=share),))


def trace(share: float, tokens: int) -> Regime:
    """A share of the sessions of the production chat on a pool of that size."""
    return _trace(f"trace-{share:g}-{tokens}", share, tokens)


def _flags(tokens: float) -> Flags:
    pool = Flags(max_model_len=LONGEST, kv_cache_metrics=True)
    return with_pool(pool, tokens)


def with_pool(flags: Flags, tokens: float) -> Flags:
    """The same with a pool of so many tokens, or as many as the longest prompt needs."""
    tokens = max(tokens, flags.max_model_len * 1.02 + 2 * flags.block_size)
    # vLLM keeps one block for itself.
    return replace(flags, num_gpu_blocks=math.ceil(tokens / flags.block_size) + 1)


def without_limit(regime: Regime) -> Regime:
    """The same with a pool so large that nothing can be evicted in the time."""
    cost, flags = regime.cost, regime.flags
    if all(load.trace for load in regime.load):
        sent = [row for load in regime.load for row in requests(regime, load)]
        tokens: float = sum(row.length + row.output + flags.block_size for row in sent)
    else:
        steps = regime.seconds / cost.step_seconds
        # Twice: a request's last block is rarely full, and answers are computed beside prompts.
        tokens = 2 * regime.seconds / cost.prefill_token_seconds + steps * flags.block_size
    return replace(regime, flags=with_pool(flags, max(tokens, flags.num_gpu_blocks * flags.block_size)))


def _as_seed_has_it(regime: Regime, seed: int) -> Regime:
    """Other lengths, numbers and times; the pool holds the same share of what its sessions do."""
    if not seed:
        return regime
    rng = random.Random(f"{regime.name}{MARK}{seed}")

    def factor() -> float:
        return math.exp(rng.uniform(-math.log(FACTOR), math.log(FACTOR)))

    lengths, clients, think, pool, speed = (factor() for _ in range(5))
    load = tuple(_scaled(one, lengths, clients, think, factor) for one in regime.load)
    before, after = (sum(map(held, some)) for some in (regime.load, load))
    tokens = regime.flags.num_gpu_blocks * regime.flags.block_size
    grown = after / before if before else pool
    flags = replace(regime.flags, block_size=rng.choice(BLOCK_SIZES))
    cost = replace(regime.cost, step_seconds=regime.cost.step_seconds * speed)
    return replace(regime, seed=1 + seed, load=load, flags=with_pool(flags, tokens * grown), cost=cost)


def _scaled(load: Load, lengths: float, clients: float, think: float, factor: Callable[[], float]) -> Load:
    if load.trace:
        return replace(load, share=min(1.0, load.share * factor()))
    prompt, words, output = (
        tuple(round(bound * lengths) for bound in span) for span in (load.prompt, load.words, load.output)
    )
    return replace(
        load,
        clients=max(1, round(load.clients * clients)),
        prompt=prompt,
        words=words,
        output=output,
        prefix=round(load.prefix * lengths),
        longest=min(LONGEST - 1_000, round(load.longest * lengths)),
        think=(load.think[0] * think, load.think[1] * think),
    )
