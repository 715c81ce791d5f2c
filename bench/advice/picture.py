"""Predicted against measured as a picture: one dot a change, a colour for each card, straight into SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

SIDE: Final = 360
MARGIN: Final = 56
LEGEND: Final = 250
COLOURS: Final = (
    *("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf"),
    *("#bcbd22", "#e377c2", "#7f7f7f", "#0b3d91", "#800000", "#00e5b0"),
)
BAND: Final = 1.2
"""Dashed: so many times too much, and too little."""
TEXT: Final = 'font-family="sans-serif" font-size="12" fill="#57606a"'


@dataclass(frozen=True, slots=True)
class Dot:
    """One change on a card: a figure as it was measured and predicted, both above 0, and what was changed where."""

    card: str
    measured: float
    predicted: float
    about: str


def svg(left: Sequence[Dot], right: Sequence[Dot], titles: tuple[str, str]) -> str:
    """Return two pictures side by side, each with its title; axes are logarithmic."""
    cards = sorted({dot.card for dot in (*left, *right)})
    colour = {card: COLOURS[place % len(COLOURS)] for place, card in enumerate(cards)}
    width, height = 2 * (SIDE + MARGIN) + LEGEND, SIDE + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *_graph(left, titles[0], MARGIN, colour),
        *_graph(right, titles[1], SIDE + 2 * MARGIN, colour),
    ]
    for place, card in enumerate(cards):
        y = MARGIN + 18 * place
        x = width - LEGEND + 30
        lines.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour[card]}"/>')
        lines.append(f'<text x="{x + 10}" y="{y + 4}" {TEXT}>{escape(card)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _graph(dots: Sequence[Dot], title: str, left: float, colour: dict[str, str]) -> Iterator[str]:
    values = [value for dot in dots for value in (dot.measured, dot.predicted)]
    low, high = math.log(min(values) / BAND), math.log(max(values) * BAND)

    def at(value: float) -> float:
        return SIDE * (math.log(value) - low) / (high - low)

    yield f'<text x="{left}" y="{MARGIN - 16}" {TEXT}>{escape(title)}: predicted (up) against measured</text>'
    yield f'<rect x="{left}" y="{MARGIN}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#d0d7de"/>'
    for decade in range(math.ceil(low / math.log(10)), math.floor(high / math.log(10)) + 1):
        place, label = at(10.0**decade), f"{10.0**decade:g}"
        yield f'<text x="{left + place:.0f}" y="{MARGIN + SIDE + 18}" text-anchor="middle" {TEXT}>{label}</text>'
        yield f'<text x="{left - 6}" y="{MARGIN + SIDE - place + 4:.0f}" text-anchor="end" {TEXT}>{label}</text>'
    for factor, dash in ((1.0, ""), (BAND, ' stroke-dasharray="4 4"'), (1 / BAND, ' stroke-dasharray="4 4"')):
        first, last = math.exp(low) * max(1.0, 1 / factor), math.exp(high) / max(1.0, factor)
        ends = [(left + at(x), MARGIN + SIDE - at(x * factor)) for x in (first, last)]
        (x1, y1), (x2, y2) = ends
        yield f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#8c959f"{dash}/>'
    for dot in dots:
        x, y = left + at(dot.measured), MARGIN + SIDE - at(dot.predicted)
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour[dot.card]}" fill-opacity="0.75">'
            f"<title>{escape(dot.about)}</title></circle>"
        )
