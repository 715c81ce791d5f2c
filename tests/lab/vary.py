"""A regime as another server would have it: other sizes, loads and speeds, by a seed.

A diagnosis that was tuned on the regimes as they are written has to be judged on others. What is true of a varied one
is what the scheduler did, as always; it may be another cause than the one the regime was written for.
"""

import math
import random
from dataclasses import replace
from typing import Final

from tests.lab import cards
from tests.lab.regime import Card, Cost, Fault, Flags, Load, Regime, SglangFlags, Span

MARK: Final = "@"
"""`kv-thrash@3` is `kv-thrash` varied by seed 3."""
FACTOR: Final = 1.8
"""Sizes and loads are multiplied by between 1 / this and this, evenly on a logarithmic scale."""
BLOCK_SIZES: Final = (16, 16, 16, 32, 64)


def varied(regime: Regime, seed: int) -> Regime:
    """The same situation on another server."""
    rng = random.Random(f"{regime.name}{MARK}{seed}")
    lengths = _factor(rng)
    load = tuple(_load(one, rng, lengths, regime.flags.max_model_len) for one in regime.load)
    return replace(
        regime,
        name=f"{regime.name}{MARK}{seed}",
        expect="",
        seed=seed * 1000 + regime.seed,
        flags=_flags(regime.flags, rng, lengths),
        sglang=_sglang(regime.sglang, rng, lengths) if regime.sglang else None,
        cost=_cost(regime.cost, rng),
        card=_card(regime.card, rng) if regime.card else None,
        load=load,
        fault=tuple(_fault(one, rng) for one in regime.fault),
    )


def _flags(flags: Flags, rng: random.Random, lengths: float) -> Flags:
    size = rng.choice(BLOCK_SIZES) if flags.layers == "full" else flags.block_size
    tokens = flags.num_gpu_blocks * flags.block_size * _factor(rng) * lengths
    # A prompt as long as allowed must fit: the engine refuses to start otherwise.
    tokens = max(tokens, flags.max_model_len * 1.02 + 2 * size) if flags.layers == "full" else tokens
    return replace(
        flags,
        block_size=size,
        num_gpu_blocks=math.ceil(tokens / size) + 1,
        max_num_seqs=_whole(flags.max_num_seqs, rng),
        max_num_active_seqs=None if flags.max_num_active_seqs is None else _whole(flags.max_num_active_seqs, rng),
        max_num_batched_tokens=max(
            _whole(flags.max_num_batched_tokens, rng), 0 if flags.enable_chunked_prefill else flags.max_model_len
        ),
        max_loras=None if flags.max_loras is None else _whole(flags.max_loras, rng),
    )


def _sglang(flags: SglangFlags, rng: random.Random, lengths: float) -> SglangFlags:
    """A prompt and answer as long as allowed must fit: SGLang would shorten them otherwise."""
    tokens = flags.max_total_tokens * _factor(rng) * lengths
    return replace(
        flags,
        max_total_tokens=round(max(tokens, flags.context_length * 1.02)),
        max_running_requests=_whole(flags.max_running_requests, rng),
        chunked_prefill_size=_whole(flags.chunked_prefill_size, rng),
    )


def _cost(cost: Cost, rng: random.Random) -> Cost:
    return replace(
        cost,
        step_seconds=cost.step_seconds * _factor(rng),
        prefill_token_seconds=cost.prefill_token_seconds * _factor(rng),
        context_token_seconds=cost.context_token_seconds * _factor(rng),
    )


def _card(card: Card, rng: random.Random) -> Card:
    """The same model on any card that there is a table of, somewhat slower or faster than that says."""
    host = card.host_layer_seconds * _factor(rng)
    return Card(table=rng.choice(cards.alike(card.table)), host_layer_seconds=host, slower=_factor(rng, 1.2))


def _load(load: Load, rng: random.Random, lengths: float, most: int) -> Load:
    prompt, output = (
        _span(load.prompt, lengths, most * 0.7),
        _span(load.output, lengths * _factor(rng, 1.3), most * 0.3),
    )
    return replace(
        load,
        clients=_whole(load.clients, rng) if load.clients else 0,
        rate=load.rate * _factor(rng) / lengths,
        prompt=prompt,
        output=output,
        asks=max(round(output[1]), round(load.asks * lengths)) if load.asks else 0,
        prefix=min(int(load.prefix * lengths), max(0, prompt[0] - 1)),
        think_seconds=load.think_seconds * _factor(rng),
        grammar_seconds=load.grammar_seconds * _factor(rng),
    )


def _fault(fault: Fault, rng: random.Random) -> Fault:
    moved = rng.uniform(-10, 10) if fault.at >= 20 else 0.0
    return replace(fault, at=fault.at + moved, until=fault.until + moved)


def _span(span: Span, factor: float, most: float) -> Span:
    low, high = (max(1, min(int(most), round(bound * factor))) for bound in span)
    return (low, high)


def _whole(value: int, rng: random.Random) -> int:
    return max(1, round(value * _factor(rng)))


def _factor(rng: random.Random, most: float = FACTOR) -> float:
    return math.exp(rng.uniform(-math.log(most), math.log(most)))
