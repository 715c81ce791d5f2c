"""Changes that can be tried on a simulated engine, and the values worth trying."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvpressure.whatif.calibrate import Known
from kvpressure.whatif.server import Apart, Demand, Server

MEMORY: Final = "gpu_memory_utilization"
KV_DTYPE: Final = "kv_cache_dtype"
STEP: Final = "max_num_batched_tokens"
APART: Final = "apart"
SHORT_FIRST: Final = "short_first"
PREFIX_CACHING: Final = "prefix_caching"
OFFLOAD: Final = "kv_offloading"
KEPT_FREE_RATIO: Final = 0.02
HALF_AS_MUCH: Final = 2.0
"""8 bits keep two values where 16 bits keep one."""
MOST_REPLICAS: Final = 8
SEQUENCES_TRIED: Final = (1.0, 1.25)
"""Of the requests that the pool holds to their end."""

State = tuple[Server, Demand]


@dataclass(frozen=True, slots=True)
class Cure:
    """One change: the kind (`key`), its value, and what it makes of a server and those who ask it.

    `by` is how many servers there are afterwards for each one before, `long` how many of them are for long requests
    only. `at_best` says that what it costs is not simulated, so that it gains that much at the most.
    """

    key: str
    value: float
    apply: Callable[[State], State]
    by: int = 1
    long: int = 0
    at_best: bool = False


def cap_prompt(tokens: int) -> Cure:
    """Refuse longer prompts at the edge."""
    return Cure("cap_prompt", tokens, lambda state: (replace(state[0], cap_prompt=tokens), state[1]))


def cap_output(tokens: int) -> Cure:
    """End longer answers early."""
    return Cure("cap_output", tokens, lambda state: (replace(state[0], cap_output=tokens), state[1]))


def cap_total(tokens: int) -> Cure:
    """No request is longer with its answer: longer prompts are refused, longer answers end early."""
    return Cure("max_model_len", tokens, lambda state: (replace(state[0], cap_total=tokens), state[1]))


def sequences(most: int) -> Cure:
    """Run at most so many at once."""
    return Cure("max_num_seqs", most, lambda state: (replace(state[0], max_num_seqs=most), state[1]))


def keep_free(ratio: float) -> Cure:
    """Keep a share of the pool free of new requests, for those that run to grow into."""

    def apply(state: State) -> State:
        return replace(state[0], held_back_tokens=ratio * state[0].pool_tokens), state[1]

    return Cure("kept_free", ratio, apply)


def step_tokens(tokens: int) -> Cure:
    """Compute at most so many tokens in a step. What memory that gives the pool is not known, and not counted."""
    return Cure(STEP, tokens, lambda state: (replace(state[0], step_tokens=tokens), state[1]))


def pool(key: str, factor: float, value: float) -> Cure:
    """A pool that holds so many times as much."""

    def apply(state: State) -> State:
        return replace(state[0], pool_tokens=state[0].pool_tokens * factor), state[1]

    return Cure(key, value, apply)


def kv_in_8_bits() -> Cure:
    """The KV cache in 8 bits instead of 16."""
    return pool(KV_DTYPE, HALF_AS_MUCH, 8)


def memory_share(current: float, new: float) -> Cure:
    """Another share of the GPU's memory: the pool changes by the same factor, or more."""
    return pool(MEMORY, new / current, new)


def short_first(tokens: int) -> Cure:
    """Prompts up to so many tokens before longer ones, whenever they come."""
    return Cure(SHORT_FIRST, tokens, lambda state: (replace(state[0], first_up_to=tokens), state[1]))


def prefix_caching() -> Cure:
    """Requests that were thrown out find what is left of their own; what prompts share is not known, nor counted."""
    return Cure(PREFIX_CACHING, 1, lambda state: (replace(state[0], reuses=True), state[1]))


def offload(gib: int) -> Cure:
    """Requests that were thrown out find all of their own in the host's memory. What loading takes is not counted."""
    return Cure(OFFLOAD, gib, lambda state: (replace(state[0], keeps_all=True), state[1]), at_best=True)


def replicas(total: int) -> Cure:
    """So many servers for each one now, that share what is asked."""
    return Cure("add_replica", total, lambda state: (state[0], state[1].divided(total)), by=total)


def apart(tokens: int, short: int, long: int) -> Cure:
    """So many servers for prompts up to so many tokens, and others for longer ones, instead of each one now."""
    kept = Apart(tokens, short, long)
    return Cure(APART, tokens, lambda state: (state[0], replace(state[1], apart=kept)), by=short + long, long=long)


def caps(known: Known, most_refused: float) -> Iterator[Cure]:
    """Caps at the bounds of buckets, as long as they hit no more than a share `most_refused` of the requests.

    Between two bounds nobody knows how many requests are longer.
    """
    for make, lengths in ((cap_prompt, known.prompts), (cap_output, known.outputs)):
        for bucket in reversed(lengths.buckets[1:]):
            _, most = lengths.above(bucket.low)
            if most > most_refused:
                break
            yield make(round(bucket.low))


def length_bounds(known: Known, most: float) -> Iterator[int]:
    """Bounds of buckets beyond which lies a share `most` of the prompts, or less; the longest first."""
    for bucket in reversed(known.prompts.buckets[1:]):
        if known.prompts.above(bucket.low)[1] > most:
            break
        yield round(bucket.low)


def fewer_sequences(known: Known, state: State, running: float) -> Iterator[Cure]:
    """From what the pool holds to the end of every request up to what runs, and only against preemption."""
    if known.measured.preempted_per_second <= 0:
        return
    least = holds(state)
    for value in sorted({max(2, math.ceil(least * factor)) for factor in SEQUENCES_TRIED}):
        if value < min(running, state[0].max_num_seqs):
            yield sequences(value)


def holds(state: State) -> int:
    """Requests that the pool holds to their end, all of average length within the caps."""
    server, demand = state
    inside = [one for one in demand.asked if one.prompt <= server.cap_prompt]
    if not inside:
        return 1
    each = sum(one.own + min(one.output, server.cap_output) for one in inside) / len(inside)
    return max(1, int(server.pool_tokens // (each + server.block_tokens / 2)))


def applied(state: State, cures: Sequence[Cure]) -> State:
    """One after the other."""
    for cure in cures:
        state = cure.apply(state)
    return state
