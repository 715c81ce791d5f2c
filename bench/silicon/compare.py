"""How far tables are from the library, at random steps: of decoding, of one chunk or several equal ones, and mixed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
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

    @property
    def kind(self) -> str:
        """What is in it."""
        return "mixed" if self.chunks and self.sequences else "prompts" if self.chunks else "decode"


@dataclass(frozen=True, slots=True)
class Distance:
    """Shares by which one table differs from the library."""

    kind: str
    shares: Sequence[float]

    @property
    def median(self) -> float:
        """Of their sizes."""
        return median(map(abs, self.shares))

    @property
    def text(self) -> str:
        """Median, 90th and 99th percentile, worst."""
        ordered = sorted(map(abs, self.shares))
        tail = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.9, 0.99))
        told = (f"{value:7.2%}" for value in (self.median, *tail, ordered[-1]))
        return f"{self.kind:8} {len(ordered):5} {' '.join(told)}"


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


def predicted(table: StepTable, shape: Shape) -> float:
    """Return the table's microseconds."""
    chunks = [Chunk(shape.tokens, shape.before)] * shape.chunks
    return table.seconds(shape.sequences, shape.context, chunks) / SECONDS


def distances(table: StepTable, library: Library, count: int, seed: int) -> list[Distance]:
    """Return how far the table is from the library, by kind of step and over all."""
    found: dict[str, list[float]] = {}
    for shape in shapes(count, seed):
        share = predicted(table, shape) / library.step(*shape) - 1
        for kind in (shape.kind, "all"):
            found.setdefault(kind, []).append(share)
    return [Distance(kind, shares) for kind, shares in sorted(found.items())]


def _even(rng: random.Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(max(low, high)))))
