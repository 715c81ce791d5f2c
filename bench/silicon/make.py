"""A table of step times out of the library: which points are asked for, and how they are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from bench.silicon.library import Library, Made
from kvpressure.simulation.step_table import FORMAT

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


def _curve(asked: Callable[[int], float], low: int, high: int) -> dict[str, Any]:
    """Return points between which straight lines are near enough: halves, and their halves, where they are not."""
    known = {low: asked(low), high: asked(high)}
    spans = [(low, high)]
    while spans:
        begin, end = spans.pop()
        middle = round((begin * end) ** 0.5)
        if not begin < middle < end:
            continue
        # Matrix products go in steps: looked at in more places than the middle.
        places = sorted({middle, (begin + middle) // 2, (middle + end) // 2} - {begin, end})
        told = {place: asked(place) for place in places}
        if any(_off(known[begin], known[end], (place - begin) / (end - begin), told[place]) for place in places):
            known[middle] = told.get(middle, asked(middle))
            spans += [(begin, middle), (middle, end)]
    axis = sorted(known)
    return {"tokens": axis, "values": [_short(known[place]) for place in axis]}


def _off(before: float, after: float, share: float, true: float) -> bool:
    return abs(before + share * (after - before) - true) > TOLERANCE * true


def _short(microseconds: float) -> float:
    value = float(f"{microseconds:.{DIGITS}g}")
    return int(value) if value.is_integer() else value
