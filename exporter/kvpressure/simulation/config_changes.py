"""Configuration changes that can be simulated on an engine, and the values to try."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvpressure.model.limits import KV_DTYPE
from kvpressure.simulation.calibrate import Known
from kvpressure.simulation.server import Demand, LengthRouting, Server

MEMORY: Final = "gpu_memory_utilization"
STEP: Final = "max_num_batched_tokens"
ROUTE_BY_LENGTH: Final = "route_by_length"
SHORT_FIRST: Final = "short_first"
PREFIX_CACHING: Final = "prefix_caching"
OFFLOAD: Final = "kv_offloading"
SESSIONS: Final = "sessions"
STICKY: Final = "sticky_replicas"
GPU: Final = "gpu"
TIER_BYTES_PER_SECOND: Final = 20e9
"""From host memory to a GPU over PCIe 4.0 x16, of 32 GB/s on paper; the page does not have it."""
WATERMARK_RATIO: Final = 0.02
KV_8_BIT_POOL_FACTOR: Final = 2.0
"""8 bits keep two values where 16 bits keep one."""
MAX_REPLICAS: Final = 8
SEQUENCES_TRIED: Final = (1.0, 1.25)
"""Of the requests that the pool holds to their end."""

State = tuple[Server, Demand]


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change: the kind (`key`), its value, and what it makes of a server and its load.

    `by` is how many servers there are afterwards for each one before, `long` how many of them are for long requests
    only. `at_best` says that what it costs is not simulated, so that it gains that much at the most.
    """

    key: str
    value: float
    apply: Callable[[State], State]
    by: int = 1
    long: int = 0
    at_best: bool = False
    name: str = ""
    """What it is set to, where that is no number."""


def _of_server(key: str, value: float, make: Callable[[Server], Server], *, at_best: bool = False) -> ConfigChange:
    """Return a change of the server alone."""
    return ConfigChange(key, value, lambda state: (make(state[0]), state[1]), at_best=at_best)


def cap_prompt(tokens: int) -> ConfigChange:
    """Refuse longer prompts at the edge."""
    return _of_server("cap_prompt", tokens, lambda server: replace(server, cap_prompt=tokens))


def cap_output(tokens: int) -> ConfigChange:
    """End longer answers early."""
    return _of_server("cap_output", tokens, lambda server: replace(server, cap_output=tokens))


def cap_total(tokens: int) -> ConfigChange:
    """Limit a request with its answer: longer prompts are refused, longer answers end early."""
    return _of_server("max_model_len", tokens, lambda server: replace(server, cap_total=tokens))


def sequences(most: float) -> ConfigChange:
    """Run at most so many at once."""
    return _of_server("max_num_seqs", most, lambda server: replace(server, max_num_seqs=most))


def watermark(ratio: float) -> ConfigChange:
    """Keep a share of the pool free of new requests, for those that run to grow into."""
    return _of_server("watermark", ratio, lambda server: replace(server, watermark_tokens=ratio * server.pool_tokens))


def step_tokens(tokens: int) -> ConfigChange:
    """Compute at most so many tokens in a step. What memory that gives the pool is not known, and not counted."""
    return _of_server(STEP, tokens, lambda server: replace(server, step_tokens=tokens))


def pool(key: str, factor: float, value: float) -> ConfigChange:
    """Multiply the pool by `factor`."""
    return _of_server(key, value, lambda server: replace(server, pool_tokens=server.pool_tokens * factor))


def kv_in_8_bits() -> ConfigChange:
    """Keep the KV cache in 8 bits instead of 16."""
    return pool(KV_DTYPE, KV_8_BIT_POOL_FACTOR, 8)


def memory_share(current: float, new: float) -> ConfigChange:
    """Take another share of the GPU's memory: the pool changes by the same factor, or more."""
    return pool(MEMORY, new / current, new)


def short_first(tokens: int) -> ConfigChange:
    """Schedule prompts up to so many tokens before longer ones, whenever they come."""
    return _of_server(SHORT_FIRST, tokens, lambda server: replace(server, priority_max_prompt_tokens=tokens))


def prefix_caching() -> ConfigChange:
    """Let preempted requests reuse what is left of their blocks; common prefixes are unknown and not counted."""
    return _of_server(PREFIX_CACHING, 1, lambda server: replace(server, reuses=True))


def offload(gib: int) -> ConfigChange:
    """Let preempted requests reload all their blocks from host memory. The time to load is not counted."""
    return _of_server(OFFLOAD, gib, lambda server: replace(server, kv_offload=True), at_best=True)


def context_tier(gib: float, bytes_per_token: float) -> ConfigChange:
    """Keep evicted contexts in a tier of that size outside the pool, and load them from there."""
    tokens, seconds = gib * 2**30 / bytes_per_token, bytes_per_token / TIER_BYTES_PER_SECOND
    return _of_server(OFFLOAD, gib, lambda server: replace(server, tier_tokens=tokens, tier_token_seconds=seconds))


def sessions(most: int) -> ConfigChange:
    """Let at most so many sessions come here; the others go elsewhere, or wait."""
    return ConfigChange(
        SESSIONS, most, lambda state: (state[0], replace(state[1], clients=min(most, state[1].clients)))
    )


def sticky(among: int) -> ConfigChange:
    """Send each session always to the same of `among` servers, where its turns go to any of them now.

    What one server sees of a session now is every so manyth turn, after as many times as long.
    """

    def apply(state: State) -> State:
        server, demand = state
        now = demand.sessions
        if now is None:
            return state
        answers = sum(now.answers) / 2
        words = [max(1.0, (bound + answers) / among - answers) for bound in now.words]
        turns = [bound * among for bound in now.turns]
        made = replace(now.thinking(1 / among), words=(words[0], words[1]), turns=(turns[0], turns[1]))
        return server, replace(demand, sessions=made, clients=max(1, round(demand.clients / among)))

    return ConfigChange(STICKY, among, apply)


def replicas(total: int) -> ConfigChange:
    """Run `total` servers for each one now, which share the load."""
    return ConfigChange("add_replica", total, lambda state: (state[0], state[1].divided(total)), by=total)


def route_by_length(tokens: int, short: int, long: int) -> ConfigChange:
    """Replace each server by some for prompts up to so many tokens, and others for longer ones."""
    kept = LengthRouting(tokens, short, long)
    return ConfigChange(
        ROUTE_BY_LENGTH,
        tokens,
        lambda state: (state[0], replace(state[1], length_routing=kept)),
        by=short + long,
        long=long,
    )


def caps(known: Known, most_refused: float) -> Iterator[ConfigChange]:
    """Yield caps at the bounds of buckets, as long as they hit no more than a share `most_refused` of the requests.

    Between two bounds it is not known how many requests are longer.
    """
    for make, lengths in ((cap_prompt, known.prompts), (cap_output, known.outputs)):
        for bucket in reversed(lengths.buckets[1:]):
            _, most = lengths.above(bucket.low)
            if most > most_refused:
                break
            yield make(round(bucket.low))


def length_bounds(known: Known, most: float) -> Iterator[int]:
    """Return bounds of buckets beyond which lies a share `most` of the prompts, or less; the longest first."""
    for bucket in reversed(known.prompts.buckets[1:]):
        if known.prompts.above(bucket.low)[1] > most:
            break
        yield round(bucket.low)


def fewer_sequences(known: Known, state: State, running: float) -> Iterator[ConfigChange]:
    """Yield caps from what the pool holds to the end of every request up to what runs, and only against preemption."""
    if known.measured.preempted_per_second <= 0:
        return
    least = holds(state)
    for value in sorted({max(2, math.ceil(least * factor)) for factor in SEQUENCES_TRIED}):
        if value < min(running, state[0].max_num_seqs):
            yield sequences(value)


def holds(state: State) -> int:
    """Return how many requests of average length, within the caps, the pool holds until they finish."""
    server, demand = state
    inside = [shape for shape in demand.requests if shape.prompt <= server.cap_prompt]
    if not inside:
        return 1
    each = sum(shape.own + min(shape.output, server.cap_output) for shape in inside) / len(inside)
    return max(1, int(server.pool_tokens // (each + server.block_tokens / 2)))


def applied(state: State, changes: Sequence[ConfigChange]) -> State:
    """Return the state after one change after the other."""
    for change in changes:
        state = change.apply(state)
    return state
