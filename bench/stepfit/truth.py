"""What steps really take in a regime of the lab, and what an engine would answer with them, or with those fitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.stepfit.fit import Coefficients
from bench.stepfit.rows import Engine
from kvpressure.simulation.step_table import Chunk
from tests.lab.cards import Work, seconds
from tests.lab.regime import Regime

STEP_TOKENS: Final = 8192
BATCHES: Final = (0.5, 1.0, 1.5, 2.0, 3.0)
"""Of the batch that was seen."""

Decode = Callable[[float, float], float]
"""Seconds of a step by sequences and their mean context."""
Added = Callable[[float, float, float, float], float]
"""Seconds that a chunk adds to a step, by sequences, their context, its tokens, and those before it."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Step times, however they are known."""

    decode: Decode
    chunk: Added

    def tokens_per_second(self, batch: float, engine: Engine) -> float:
        """Of an engine that always has so many requests of these lengths: each decodes, and is computed once."""
        context, output = mean_context(engine), max(1.0, engine.output)
        prefill = 0.0
        own = engine.prompt * (1 - engine.cached_ratio)
        before = engine.prompt - own
        while own > 0:
            tokens = min(own, STEP_TOKENS)
            prefill += self.chunk(batch, context, tokens, before)
            own, before = own - tokens, before + tokens
        return batch * output / (output * self.decode(batch, context) + batch * prefill)


def mean_context(engine: Engine) -> float:
    """Tokens of a request that decodes, by the lengths."""
    return engine.context if engine.cached_ratio <= 0.05 else max(engine.context, engine.prompt + engine.output / 2)


def true_steps(regime: Regime) -> Steps:
    """What the lab uses."""

    def decode(batch: float, context: float) -> float:
        return _between(batch, lambda count: seconds(regime, Work(count, (round(context),) * count, ()))[0])

    def chunk(batch: float, context: float, tokens: float, before: float) -> float:
        def added(count: int) -> float:
            contexts, chunks = (round(context),) * count, (Chunk(round(tokens), round(before)),)
            return seconds(regime, Work(count, contexts, chunks))[0] - seconds(regime, Work(count, contexts, ()))[0]

        return _between(batch, added)

    return Steps(decode, chunk)


def steps_of(coefficients: Coefficients) -> Steps:
    """What was fitted."""
    return Steps(coefficients.decode, lambda batch, _context, tokens, before: coefficients.chunk(batch, tokens, before))


def _between(batch: float, at: Callable[[int], float]) -> float:
    low = max(1, int(batch))
    share = batch - low
    return at(low) if share <= 0 else (1 - share) * at(low) + share * at(low + 1)
