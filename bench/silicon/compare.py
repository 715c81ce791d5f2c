"""How far tables are from the library, at random steps: of decoding, of one chunk or several equal ones, and mixed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from kvpressure.capacity.silicon import Library
from kvpressure.simulation.step_table import SECONDS, Chunk, StepTable

SEQUENCES: Final = (1, 512)
CONTEXT: Final = (16, 120_000)
POOL_TOKENS: Final = 4_000_000
"""No card holds more."""
STEP_TOKENS: Final = (16, 32_768)
MOST_CHUNKS: Final = 8
BEFORE: Final = (64, 100_000)


class Shape(NamedTuple):
    """A step: sequences that decode and their mean context; chunks, all alike."""

    sequences: int
    context: int
    chunks: int
    tokens: int
    before: int


def shapes(count: int, seed: int) -> Iterator[Shape]:
    """Return random steps, evenly on logarithmic scales."""
    rng = random.Random(seed)
    for _ in range(count):
        kind = rng.choice(("decode", "prompts", "mixed"))
        sequences = _even(rng, *SEQUENCES) if kind != "prompts" else 0
        context = _even(rng, CONTEXT[0], min(CONTEXT[1], POOL_TOKENS // sequences)) if sequences else 0
        if kind == "decode":
            yield Shape(sequences, context, 0, 0, 0)
            continue
        total = _even(rng, *STEP_TOKENS)
        chunks = min(rng.choice((1, 1, 1, 2, 3, MOST_CHUNKS)), total // 2)
        before = 0 if rng.random() < 0.5 else _even(rng, *BEFORE)
        yield Shape(sequences, context, chunks, total // chunks, before)


def distances(table: StepTable, library: Library, count: int, seed: int) -> list[float]:
    """Return by which shares the table differs from the library, the smallest first."""
    found = []
    for shape in shapes(count, seed):
        chunks = [Chunk(shape.tokens, shape.before)] * shape.chunks
        seconds = table.seconds(shape.sequences, shape.context, chunks)
        found.append(abs(seconds / SECONDS / library.step(*shape) - 1))
    return sorted(found)


def _even(rng: random.Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(max(low, high)))))
