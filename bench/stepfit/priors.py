"""What is known before a page is read: of any model on any card, of a model, of a card and a model."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, pstdev
from typing import Final

from bench.stepfit.fit import TERMS, Coefficients, Row, fitted
from kvpressure.capacity.cards import names, table
from kvpressure.simulation.least_squares import Prior
from kvpressure.simulation.server import read_ratio
from kvpressure.simulation.step_table import Chunk

STEPS: Final = 600
POOL_TOKENS: Final = 400_000
STEP_TOKENS: Final = (64, 8_192)
LOOSE: Final = tuple(map(math.log, (1e-2, 1e-2, 1e-5, 5e-8, 2e-5, 1e-9)))
LEAST_DEVIATION: Final = 0.3
CARD_DEVIATION: Final = 0.1
HOST_DEVIATION: Final = 0.5
"""Of the fixed term where the card is known: what the host adds to a step no card tells."""
CARD_SCALE: Final = 0.15


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a model's configuration tells; parameters in numbers, `kv_elements` of a token, all layers."""

    parameters: float
    active: float
    outside_experts: float
    layers: int
    attention: int
    kv_elements: int
    expert_ratio: float = 0.0


_QWEN_MOE: Final = Geometry(30.5e9, 3.3e9, 1.5e9, 48, 32 * 128, 48 * 2 * 4 * 128, 8 / 128)
GEOMETRIES: Final = {
    "meta-llama/Meta-Llama-3.1-8B": Geometry(8.03e9, 8.03e9, 8.03e9, 32, 32 * 128, 32 * 2 * 8 * 128),
    "meta-llama/Meta-Llama-3.1-70B": Geometry(70.6e9, 70.6e9, 70.6e9, 80, 64 * 128, 80 * 2 * 8 * 128),
    "Qwen/Qwen3-8B": Geometry(8.19e9, 8.19e9, 8.19e9, 36, 32 * 128, 36 * 2 * 8 * 128),
    "Qwen/Qwen3-32B": Geometry(32.8e9, 32.8e9, 32.8e9, 64, 64 * 128, 64 * 2 * 8 * 128),
    "Qwen/Qwen3-30B-A3B": _QWEN_MOE,
}
BANDWIDTH: Final = 3.35e12
FLOPS: Final = 0.99e15
"""Of an H100, in 16 bits. What a model's coefficients are beside each other depends on the card by these two alone."""
WEIGHTS_EFFICIENCY: Final = 0.85
CONTEXT_EFFICIENCY: Final = 0.9
PROMPT_EFFICIENCY: Final = 0.85
PAIR_EFFICIENCY: Final = 0.65
LAYER_SECONDS: Final = 30e-6
SEQUENCE_PROMPTS: Final = 0.65
"""A decoding sequence's own work, in prompt tokens."""
GEOMETRY_DEVIATIONS: Final = {
    "fixed": 0.6,
    "experts": 0.2,
    "sequence": 0.5,
    "context": 0.25,
    "prompt": 0.4,
    "pair": 0.4,
}


def geometry(name: str) -> Geometry:
    """The model of a table."""
    return GEOMETRIES[table(name).model.removesuffix("-FP8")]


@cache
def in_terms(name: str) -> Coefficients:
    """A table as six terms, as near as these come, over steps that engines make."""
    ratio = geometry(name).expert_ratio
    loose = Prior(LOOSE, (5.0,) * len(LOOSE), expert_ratio=ratio)
    return fitted(list(_steps(name, ratio)), loose, noise=0.1).coefficients


def of_any(name: str = "") -> Prior:
    """What coefficients are beside each other, over the tables of other models than that of `name`.

    Whether it has experts is known: without, over those without. With, experts are taken from what is read of them.
    """
    own = table(name).model.removesuffix("-FP8") if name else ""
    ratio = geometry(name).expert_ratio if name else 0.0
    others = [other for other in names() if table(other).model.removesuffix("-FP8") != own]
    known = [in_terms(other) for other in others if not geometry(other).expert_ratio]
    logs = [[math.log(one / coefficients.fixed) for one in coefficients.values] for coefficients in known]
    means = [fmean(values) for values in zip(*logs, strict=True)]
    spread = [max(LEAST_DEVIATION, pstdev(values)) for values in zip(*logs, strict=True)]
    experts = TERMS.index("experts")
    means[experts], spread[experts] = (math.log(4.0), 0.7) if ratio else (math.log(1e-6), 0.1)
    return Prior(tuple(means), tuple(spread), expert_ratio=ratio)


def of_geometry(name: str) -> Prior:
    """What a model's coefficients are beside each other on any card."""
    made, told = geometry(name), table(name)
    weight, kv = told.weight_bits / 8, told.kv_bits / 8
    faster = 16 / told.weight_bits
    prompt = 2 * made.active / (FLOPS * PROMPT_EFFICIENCY) / faster
    values = (
        made.outside_experts * weight / (BANDWIDTH * WEIGHTS_EFFICIENCY) + made.layers * LAYER_SECONDS,
        max(1e-9, (made.parameters - made.outside_experts) * weight / (BANDWIDTH * WEIGHTS_EFFICIENCY)),
        SEQUENCE_PROMPTS * prompt,
        made.kv_elements * kv / (BANDWIDTH * CONTEXT_EFFICIENCY),
        prompt,
        4 * made.layers * made.attention / (FLOPS * PAIR_EFFICIENCY),
    )
    deviations = tuple(GEOMETRY_DEVIATIONS[term] for term in TERMS)
    return Prior(tuple(map(math.log, values)), deviations, expert_ratio=made.expert_ratio)


def of_card(name: str) -> Prior:
    """What a table says, by itself."""
    found = in_terms(name)
    logs = tuple(math.log(one) for one in found.values)
    deviations = tuple(HOST_DEVIATION if term == "fixed" else CARD_DEVIATION for term in TERMS)
    return Prior(logs, deviations, found.expert_ratio, CARD_SCALE)


def _steps(name: str, expert_ratio: float) -> Iterator[Row]:
    rng = random.Random(1)
    steps = table(name)
    for number in range(STEPS):
        sequences = round(_even(rng, 1, 256))
        context = _even(rng, 200, min(60_000, POOL_TOKENS / sequences))
        chunk = Chunk(_even(rng, *STEP_TOKENS), rng.choice((0.0, _even(rng, 200, 60_000)))) if number % 2 else None
        chunks: Sequence[Chunk] = (chunk,) if chunk else ()
        tokens, pairs = (chunk.tokens, chunk.tokens * (chunk.before + chunk.tokens / 2)) if chunk else (0.0, 0.0)
        seconds, share = steps.seconds(sequences, context, chunks), read_ratio(expert_ratio, sequences + tokens)
        yield Row(seconds, 1, share, sequences, sequences * context, tokens, pairs)


def _even(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(max(low, high))))
