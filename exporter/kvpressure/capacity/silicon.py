"""Step times as aiconfigurator-core has them: NVIDIA's measurements of kernels on real cards (Apache-2.0).

For cards and models without a table, and to make tables (`python -m bench.silicon`). The library is the extra
`silicon`: 80 MB, and 300 MB of what it depends on. All times are microseconds, as in the tables.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, Final

from kvpressure.simulation.step_table import FORMAT, StepTable, parse

DISTRIBUTION: Final = "aiconfigurator-core"
MICROSECONDS: Final = 1000.0
"""The library's are milliseconds."""
DIGITS: Final = 4
TOLERANCE: Final = 0.002
"""A curve gets another point where it is farther from the library than this share."""
MOST_TOKENS: Final = 65_536
MOST_SEQUENCES: Final = 1_024
DECODE_TOKENS: Final = (1, MOST_SEQUENCES)
MIXED_TOKENS: Final = (1, MOST_TOKENS)
SEQUENCES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024)
CONTEXTS: Final = (
    *(1, 64, 128, 256, 512, 768, 1_024, 1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768),
    *(49_152, 65_536, 98_304, 131_072),
)
CHUNKS: Final = (1, 2, 4, 8, 16)
CHUNK_TOKENS: Final = (
    *(2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288),
    *(16_384, 32_768),
)
BEFORE: Final = (0, 256, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072)


class SiliconError(Exception):
    """The library has no step times; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Made:
    """One table to be made: a model by its name on Hugging Face, on so many cards of a kind."""

    name: str
    model: str
    card: str
    layers: int
    tensor_parallel: int = 1
    weight_bits: int = 16
    kv_bits: int = 16
    experts: bool = False


class Library:
    """One model on its cards, which gives the parts of a step."""

    def __init__(self, made: Made) -> None:
        self._made = made

    @cached_property
    def _handle(self) -> Any:
        engine = importlib.import_module("aiconfigurator_core.sdk.engine")
        # It logs every kernel that was measured for another version.
        logging.disable(logging.WARNING)
        made = self._made
        options: dict[str, Any] = {"tp_size": made.tensor_parallel}
        if made.experts:
            # Experts are divided among the cards as the rest is.
            options |= {"moe_tp_size": made.tensor_parallel, "moe_ep_size": 1}
        if made.kv_bits == 8:
            options["kvcache_quant_mode"] = "fp8"
        return engine.EngineHandle.compile(made.model, made.card, "vllm", **options)

    def decode_tokenwise(self, sequences: int) -> float:
        """Return all but attention of a step that decodes so many sequences."""
        return _sum(self._handle.decode_step_per_op(sequences, 1024, 2), attention=False)

    def decode_attention(self, sequences: int, context: int) -> float:
        """Return the attention of so many sequences of that length."""
        return _sum(self._handle.decode_step_per_op(sequences, context, 2), attention=True)

    def mixed_tokenwise(self, tokens: int) -> float:
        """Return all but attention of a step with so many tokens in all, of which some are a prompt's."""
        return float(self._handle.mixed_step_breakdown(tokens, 0, tokens, 2)[1]) * MICROSECONDS

    def chunk_attention(self, chunks: int, tokens: int, before: int) -> float:
        """Return the attention of chunks of `tokens` after `before`. The library's input length has both in it."""
        context, _ = self._handle.run_static_per_op(
            batch_size=chunks, isl=before + tokens, osl=2, prefix=before, mode="static_ctx"
        )
        return _sum(context, attention=True)

    def step(self, sequences: int, context: int, chunks: int = 0, tokens: int = 0, before: int = 0) -> float:
        """Return the microseconds of a whole step."""
        attention = self.decode_attention(sequences, context) if sequences else 0.0
        if not chunks:
            return self.decode_tokenwise(sequences) + attention
        computed = self.mixed_tokenwise(sequences + chunks * tokens)
        return computed + attention + self.chunk_attention(chunks, tokens, before)


def provenance() -> dict[str, str]:
    """Return what a table is made from."""
    return {"library": f"{DISTRIBUTION} {version(DISTRIBUTION)}", "license": "Apache-2.0"}


def _sum(operations: Iterable[Sequence[Any]], *, attention: bool) -> float:
    return (
        sum(float(operation[1]) for operation in operations if ("attention" in operation[0]) is attention)
        * MICROSECONDS
    )


def computed(made: Made) -> StepTable:
    """Return the table of a model on cards, by the library. Raises SiliconError."""
    try:
        return parse(written(table(made, Library(made), provenance())))
    except ImportError as error:
        raise SiliconError(
            f"there is no table of {made.model} on {made.card}; what is not shipped needs the extra silicon: "
            "pip install 'kvpressure[silicon]' (Python 3.12)"
        ) from error
    except Exception as error:
        raise SiliconError(f"aiconfigurator-core has no step times of {made.model} on {made.card}: {error}") from error


def table(made: Made, library: Library, about: Mapping[str, str]) -> dict[str, Any]:
    """Return the table as it is written."""
    return {
        "format": FORMAT,
        "card": made.card,
        "model": made.model,
        "tensor_parallel": made.tensor_parallel,
        "weight_bits": made.weight_bits,
        "kv_bits": made.kv_bits,
        "layers": made.layers,
        "made": dict(about),
        "decode_tokenwise_us": _curve(library.decode_tokenwise, *DECODE_TOKENS),
        "mixed_tokenwise_us": _curve(library.mixed_tokenwise, *MIXED_TOKENS),
        "decode_attention_us": {
            "rows": SEQUENCES,
            "columns": CONTEXTS,
            "values": [[_short(library.decode_attention(rows, columns)) for columns in CONTEXTS] for rows in SEQUENCES],
        },
        "chunk_attention_us": {
            "chunks": CHUNKS,
            "rows": CHUNK_TOKENS,
            "columns": BEFORE,
            "values": [
                [
                    [_short(library.chunk_attention(count, tokens, before)) for before in BEFORE]
                    for tokens in CHUNK_TOKENS
                ]
                for count in CHUNKS
            ],
        },
    }


def written(table: Mapping[str, Any]) -> str:
    """Return the table's text: a line for each of its fields."""
    lines = (f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}" for key, value in table.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _curve(microseconds: Callable[[int], float], low: int, high: int) -> dict[str, Any]:
    """Return points between which straight lines are near enough: halves, and their halves, where they are not."""
    known = {low: microseconds(low), high: microseconds(high)}
    spans = [(low, high)]
    while spans:
        begin, end = spans.pop()
        middle = round((begin * end) ** 0.5)
        if not begin < middle < end:
            continue
        # Matrix products go in steps: looked at in more places than the middle.
        places = sorted({middle, (begin + middle) // 2, (middle + end) // 2} - {begin, end})
        here = {place: microseconds(place) for place in places}
        if any(_off(known[begin], known[end], (place - begin) / (end - begin), here[place]) for place in places):
            known[middle] = here.get(middle, microseconds(middle))
            spans += [(begin, middle), (middle, end)]
    axis = sorted(known)
    return {"tokens": axis, "values": [_short(known[place]) for place in axis]}


def _off(before: float, after: float, share: float, true: float) -> bool:
    return abs(before + share * (after - before) - true) > TOLERANCE * true


def _short(microseconds: float) -> float:
    if not 0 < microseconds < math.inf:
        raise ValueError("a time that is none")
    value = float(f"{microseconds:.{DIGITS}g}")
    return int(value) if value.is_integer() else value
