"""The prior of step times in `kvpressure.simulation.steps`, out of the tables of cards."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from statistics import fmean, linear_regression, pstdev
from typing import Final

from kvpressure.capacity.cards import names, table
from kvpressure.simulation.least_squares import Prior, Row, fitted
from kvpressure.simulation.step_table import Chunk

TERMS: Final = ("fixed", "experts", "sequence", "context", "prompt", "pair")
"""Seconds of a step, of reading all experts' weights, of each sequence it decodes, of each token of context these read,
of each prompt token, and of each prompt token for each one that precedes it."""
EXPERT_RATIOS: Final = {"Qwen/Qwen3-30B-A3B": 8 / 128}
SIZE: Final = re.compile(r"(\d+)B")
STEPS: Final = 600
POOL_TOKENS: Final = 400_000
STEP_TOKENS: Final = (64, 8_192)
NOISE_RATIO: Final = 0.1
"""Deviation of a step's seconds from what the terms say: a table is no sum of them."""
LOOSE: Final = Prior(tuple(map(math.log, (1e-2, 1e-2, 1e-5, 5e-8, 2e-5, 1e-9))), (5.0,) * len(TERMS))
LEAST_DEVIATION: Final = 0.3


def of_any(name: str = "") -> Prior:
    """Return what coefficients are beside each other, over the tables of other models than that of `name`.

    Whether it has experts is known: without, over those without. With, experts are taken from what is read of them.
    """
    own = _model(name) if name else ""
    dense = [other for other in names() if _model(other) != own and _model(other) not in EXPERT_RATIOS]
    logs = [[math.log(value / _in_terms(other)[0]) for value in _in_terms(other)] for other in dense]
    means = [fmean(values) for values in zip(*logs, strict=True)]
    spread = [max(LEAST_DEVIATION, pstdev(values)) for values in zip(*logs, strict=True)]
    ratio, experts = EXPERT_RATIOS.get(own, 0.0), TERMS.index("experts")
    means[experts], spread[experts] = (math.log(4.0), 0.7) if ratio else (math.log(1e-6), 0.1)
    return Prior(tuple(means), tuple(spread), expert_ratio=ratio)


def context_by_size(name: str = "") -> tuple[float, float]:
    """Return a token of context over the fixed part at 8 billion parameters, and by their logarithm (both logarithms).

    Least squares over the tables of other dense models than that of `name`.
    """
    own, context = _model(name) if name else "", TERMS.index("context")
    others = [other for other in names() if _model(other) != own and _model(other) not in EXPERT_RATIOS]
    sizes = [math.log(float(SIZE.findall(_model(other))[0]) / 8) for other in others]
    ratios = [math.log(_in_terms(other)[context] / _in_terms(other)[0]) for other in others]
    by_size, at_8b = linear_regression(sizes, ratios)
    return at_8b, by_size


def _model(name: str) -> str:
    return table(name).model.removesuffix("-FP8")


@cache
def _in_terms(name: str) -> Sequence[float]:
    """Return a dense model's table as six terms, as near as these come, over steps that engines make."""
    return fitted(list(_steps(name)), LOOSE).values


def _steps(name: str) -> Iterator[Row]:
    rng = random.Random(1)
    steps = table(name)
    for number in range(STEPS):
        sequences = round(_even(rng, 1, 256))
        context = _even(rng, 200, min(60_000, POOL_TOKENS / sequences))
        chunk = Chunk(_even(rng, *STEP_TOKENS), rng.choice((0.0, _even(rng, 200, 60_000)))) if number % 2 else None
        chunks: Sequence[Chunk] = (chunk,) if chunk else ()
        tokens, pairs = (chunk.tokens, chunk.tokens * (chunk.before + chunk.tokens / 2)) if chunk else (0.0, 0.0)
        seconds = steps.seconds(sequences, context, chunks)
        yield Row(seconds, (1, 0.0, sequences, sequences * context, tokens, pairs), NOISE_RATIO * seconds)


def _even(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(max(low, high))))
