"""How long a step takes: by the regime's formula, or by a table of a card and a model that kvpressure ships.

The tables are made by `python -m bench.silicon` from NVIDIA's measurements. What they have no answer for is simplified:
chunks of different lengths count as so many equal ones with as many pairs of tokens, and decoding sequences all have
their mean context.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvpressure.capacity.cards import table
from kvpressure.simulation.step_table import Chunk
from tests.lab.regime import Cost, Regime

VARIED_AMONG: Final = (
    *("llama-3.1-70b.h100_sxm.tp4", "llama-3.1-8b.a100_sxm", "llama-3.1-8b.b200_sxm", "llama-3.1-8b.h100_sxm"),
    *("llama-3.1-8b.l40s", "llama-3.1-8b.l40s.kv8", "qwen3-30b-a3b-fp8.h100_sxm.kv8", "qwen3-30b-a3b.h100_sxm"),
    *("qwen3-30b-a3b.h200_sxm.tp2", "qwen3-32b-fp8.h100_sxm.kv8", "qwen3-32b.h100_sxm.tp2", "qwen3-32b.h200_sxm"),
    "qwen3-8b.h100_sxm",
)
"""Tables that `--vary` chooses among: those that are added later leave a seed's regimes as they were."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one step does: tokens and contexts of its decoding sequences, and chunks of prompts.

    `contexts` and what precedes a chunk are tokens of the same request; contexts count the step's own tokens too.
    """

    tokens: int
    contexts: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @staticmethod
    def of(scheduled: Iterable[tuple[int, int]], most: int) -> Work:
        """Of requests that compute so many tokens and have so many with these; up to `most` at a time decode."""
        rows = list(scheduled)
        decoding = [(count, context) for count, context in rows if count <= most]
        return Work(
            sum(count for count, _ in decoding),
            tuple(context for _, context in decoding),
            tuple(Chunk(count, context - count) for count, context in rows if count > most),
        )


def alike(name: str) -> list[str]:
    """The same model on other cards, divided otherwise, or in other bits; with the table itself."""
    model = _model(name)
    return [other for other in VARIED_AMONG if _model(other) == model]


def seconds(regime: Regime, work: Work) -> tuple[float, float]:
    """Seconds of a step, and the share of them that a step with hardly anything to do does not take."""
    least = empty_step_seconds(regime)
    more = _linear(regime.cost, work) if regime.card is None else max(0.0, _on_card(regime, work) - least)
    return least + more, more / (least + more)


def empty_step_seconds(regime: Regime) -> float:
    """Seconds of a step with hardly anything to do."""
    card = regime.card
    if card is None:
        return regime.cost.step_seconds
    return card.slower * table(card.table).seconds(1.0, 1.0) + _host(regime)


def _on_card(regime: Regime, work: Work) -> float:
    steps, count = table(regime.card.table), len(work.contexts)
    context = sum(work.contexts) / count if count else 0.0
    return regime.card.slower * steps.seconds(count, context, work.chunks, tokens=work.tokens) + _host(regime)


def _host(regime: Regime) -> float:
    return regime.card.host_layer_seconds * table(regime.card.table).layers


def _linear(cost: Cost, work: Work) -> float:
    prefill = round(sum(chunk.tokens for chunk in work.chunks))
    context = sum(work.contexts) + round(sum(chunk.tokens + chunk.before for chunk in work.chunks))
    return (
        prefill * cost.prefill_token_seconds
        + len(work.contexts) * cost.sequence_seconds
        + context * cost.context_token_seconds
    )


def _model(name: str) -> str:
    return table(name).model.removesuffix("-FP8")
