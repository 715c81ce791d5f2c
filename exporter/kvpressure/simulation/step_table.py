"""How long a step of a model takes on a card, by interpolation in a small table.

A step decodes some sequences and computes some chunks of prompts. Its time has two parts: attention, which reads what
precedes each token, and all else (matrix products, experts, norms, exchange between cards), which depends on the number
of tokens alone and is on two curves: for steps that only decode, and for steps with chunks. Attention of decoding
is a grid of sequences and their mean context, attention of chunks one of tokens and of those that precede them, for
one, two, four, ... chunks in a step. The parts are added, as aiconfigurator's own mixed step does.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from kvpressure.simulation.steps import Steps

FORMAT: Final = 1
SECONDS: Final = 1e-6
"""Times in a table are microseconds."""
CARD_RATIOS: Final = (0.9, 1.15)
"""Of a card's step times: public traces of vLLM lie between these (`tests/lab/README.md`), clocks differ by a tenth."""
FULL_STEP_TOKENS: Final = (2_048.0, 4_096.0)


class Chunk(NamedTuple):
    """Tokens of one prompt that a step computes, and how many of the same request precede them."""

    tokens: float
    before: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over one axis, straight between its points; before the first one its value, beyond the last one on."""

    axis: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, x: float) -> float:
        """Return the value at `x`."""
        low, share = _place(self.axis, max(x, self.axis[0]))
        return _between(self.values[low], self.values[low + 1], share)


@dataclass(frozen=True, slots=True)
class Grid:
    """Values over two axes. Along the columns straight; along the rows straight, or where `power` as a power of x."""

    rows: tuple[float, ...]
    columns: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    power: bool = False

    def at(self, row: float, column: float) -> float:
        """Return the value at `row` and `column`."""
        low, share = _place(self.columns, max(column, self.columns[0]))
        row = max(row, self.rows[0])
        first, part = _place(self.rows, row)
        before, after = (
            _between(self.values[place][low], self.values[place][low + 1], share) for place in (first, first + 1)
        )
        if not self.power:
            return _between(before, after, part)
        exponent = math.log(after / before) / math.log(self.rows[first + 1] / self.rows[first])
        return before * math.exp(exponent * math.log(row / self.rows[first]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTable:
    """Step times of `model` on `tensor_parallel` cards of a kind. `made` says how the table came to be.

    `weight_bits`, `kv_bits`: of a weight and of an element of the KV cache.
    """

    card: str
    model: str
    tensor_parallel: int
    weight_bits: int
    kv_bits: int
    layers: int
    made: Mapping[str, str]
    decode_tokenwise: Curve
    mixed_tokenwise: Curve
    decode_attention: Grid
    chunk_counts: tuple[float, ...]
    chunk_attention: tuple[Grid, ...]

    def seconds(
        self, sequences: float, context: float, chunks: Sequence[Chunk] = (), *, tokens: float | None = None
    ) -> float:
        """Return the seconds of a step that decodes `sequences` of `context` tokens on average, and computes `chunks`.

        `tokens`: those that the decoding sequences are computed for, where drafts make them more than one each.
        """
        decoded = sequences if tokens is None else tokens
        computed = sum(chunk.tokens for chunk in chunks)
        pairs = sum(chunk.tokens * (chunk.before + chunk.tokens / 2) for chunk in chunks)
        return self._seconds(sequences, context, decoded, len(chunks), computed, pairs)

    def of(
        self, sequences: float, prompt_tokens: float, context_tokens: float = 0.0, preceding_tokens: float = 0.0
    ) -> float:
        """Return the seconds of a step, as `StepSeconds.of`: of contexts and preceding tokens the sums are known.

        Where too few tokens precede those of a prompt for one chunk, there are as many equal ones as explain it.
        """
        context = context_tokens / sequences if sequences else 0.0
        chunks = max(1.0, prompt_tokens**2 / (2 * preceding_tokens)) if preceding_tokens > 0 else 1.0
        many = chunks if prompt_tokens else 0.0
        return self._seconds(sequences, context, sequences, many, prompt_tokens, preceding_tokens)

    def _seconds(
        self, sequences: float, context: float, decoded: float, chunks: float, computed: float, pairs: float
    ) -> float:
        attention = self.decode_attention.at(sequences, context) if sequences else 0.0
        if not chunks:
            return (self.decode_tokenwise.at(decoded) + attention) * SECONDS
        attention += self._attention(chunks, computed, pairs)
        return (self.mixed_tokenwise.at(decoded + computed) + attention) * SECONDS

    def _attention(self, chunks: float, computed: float, pairs: float) -> float:
        """Return the microseconds of as many equal chunks that have as many pairs of a token and one it attends to."""
        mean = computed / chunks
        before = max(0.0, pairs / computed - mean / 2)
        if chunks <= 1:
            return self.chunk_attention[0].at(mean, before)
        low, share = _place(self.chunk_counts, chunks)
        one, more = (self.chunk_attention[place].at(mean, before) for place in (low, low + 1))
        return _between(one, more, share)


@dataclass(frozen=True, slots=True)
class CardSteps:
    """Step times of a table, each `by` times as long, with `host_seconds` more of a host that launches the kernels."""

    table: StepTable
    by: float = 1.0
    host_seconds: float = 0.0

    @property
    def prompt_token(self) -> float:
        """Seconds of one more prompt token in a step that is full of them."""
        few, many = (self.table.of(0.0, tokens, 0.0, tokens**2 / 2) for tokens in FULL_STEP_TOKENS)
        return self.by * (many - few) / (FULL_STEP_TOKENS[1] - FULL_STEP_TOKENS[0])

    def of(
        self, sequences: float, prompt_tokens: float, context_tokens: float = 0.0, preceding_tokens: float = 0.0
    ) -> float:
        """Return the seconds of a step."""
        return self.by * self.table.of(sequences, prompt_tokens, context_tokens, preceding_tokens) + self.host_seconds

    def scaled(self, by: float) -> CardSteps:
        """Return step times multiplied by `by`."""
        return replace(self, by=self.by * by, host_seconds=self.host_seconds * by)

    def record(self) -> dict[str, object]:
        """Return what they are, for programs."""
        table = self.table
        of = {
            "gpu": table.card,
            "model": table.model,
            "tensor_parallel": table.tensor_parallel,
            "kv_bits": table.kv_bits,
        }
        return {**of, "by": self.by, "host_seconds": self.host_seconds}


def fitted_to(table: StepTable, steps: Steps, end: float) -> CardSteps:
    """Return a table's step times so that they explain what an engine's steps take, as far as its polls show it.

    Within what cards differ by, the card is faster or slower; what is beyond that is its host's. At the ends of what is
    not known (`end` deviations more than expected for a larger batch) all is the card's, or all the host's.
    """
    batch = steps.batch
    context = batch.running * batch.context_tokens
    predicted, took = (one.of(batch.running, 0.0, context) for one in (table, steps.likeliest))
    ratio = took / predicted
    by = min(CARD_RATIOS[1], max(CARD_RATIOS[0], ratio))
    if end:
        by = min(1.0, ratio) if end > 0 else ratio
    return CardSteps(table, by, max(0.0, took - by * predicted))


def parse(text: str | bytes) -> StepTable:
    """Return a table from its text, as `capacity.silicon` writes it; a test checks those that are shipped."""
    document = json.loads(text)
    chunks = document["chunk_attention_us"]
    return StepTable(
        card=document["card"],
        model=document["model"],
        tensor_parallel=document["tensor_parallel"],
        weight_bits=document["weight_bits"],
        kv_bits=document["kv_bits"],
        layers=document["layers"],
        made=document["made"],
        decode_tokenwise=_curve(document["decode_tokenwise_us"]),
        mixed_tokenwise=_curve(document["mixed_tokenwise_us"]),
        decode_attention=_grid(document["decode_attention_us"], document["decode_attention_us"]["values"]),
        chunk_counts=_floats(chunks["chunks"]),
        chunk_attention=tuple(_grid(chunks, values, power=True) for values in chunks["values"]),
    )


def _curve(document: Mapping[str, Any]) -> Curve:
    return Curve(_floats(document["tokens"]), _floats(document["values"]))


def _grid(document: Mapping[str, Any], values: Sequence[Sequence[float]], *, power: bool = False) -> Grid:
    return Grid(_floats(document["rows"]), _floats(document["columns"]), tuple(map(_floats, values)), power)


def _floats(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, values))


def _place(axis: tuple[float, ...], x: float) -> tuple[int, float]:
    """Return the number of the point before `x` that has one after it, and how far `x` is between them; beyond: > 1."""
    low = min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)
    return low, (x - axis[low]) / (axis[low + 1] - axis[low])


def _between(before: float, after: float, share: float) -> float:
    return before + share * (after - before)
