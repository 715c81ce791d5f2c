"""PURE: small SVG line charts of the last quarter of an hour, and bars; markup whose text is escaped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.view import TROUBLE
from kvpressure.signals.history import POINTS, STEP_SECONDS, History, Span

HEIGHT = 480
TOP = 10
BOTTOM = 470
"""Height of a chart in its own units, and the places of its lines' highest and lowest points.

Its width is one per point; the page stretches it.
"""

SHORT_POINTS = 60
"""Points of a chart whose engine has been known for less than five minutes."""

_TROUBLE = {cause.value: CATALOGUE[cause].fill for cause in TROUBLE}
_FILLS = {cause.value: row.fill for cause, row in CATALOGUE.items()}


def fitted(past: History) -> History:
    """Return the part of the history that charts show: the last five minutes while nothing older is known."""
    return past.last(SHORT_POINTS) if past.unknown_points() >= POINTS - SHORT_POINTS else past


def minutes(past: History) -> int:
    """Return how many minutes charts of this history show."""
    return round(past.points * STEP_SECONDS / 60)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: its points oldest first (NaN = not known) and its style, `a` or `b`."""

    label: str
    values: Sequence[float]
    style: str = "a"

    @property
    def known(self) -> list[float]:
        """The points that are known."""
        return [value for value in self.values if not math.isnan(value)]


def chart(ident: str, description: str, lines: Sequence[Line], top: float, past: History, mark: float | None) -> Markup:
    """Return an SVG of `lines` from 0 to `top`: a dashed line at `mark`, times of trouble in their cause's colour.

    `ident` is unique on the page, `description` is for screen readers.
    """
    marked = Markup("")
    if mark is not None and 0 < mark <= top:
        marked = Markup('<path class="mark" d="M0 {}H{}"/>').format(_y(mark, top), past.points)
    return Markup(
        '<svg viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" aria-labelledby="{id}">'
        '<title id="{id}">{text}</title>{shades}{ticks}{mark}{lines}</svg>'
    ).format(
        w=past.points,
        h=HEIGHT,
        id=ident,
        text=description,
        shades=_bands(past, past.causes, _TROUBLE, "shade"),
        ticks=_ticks(past),
        mark=marked,
        lines=Markup("").join(_path(line, top) for line in lines),
    )


def strip(ident: str, description: str, past: History) -> Markup:
    """Return a band of the causes over time, each in its colour; gaps where nothing was read."""
    return Markup(
        '<svg class="strip" viewBox="0 0 {w} 10" preserveAspectRatio="none" role="img" aria-labelledby="{id}">'
        '<title id="{id}">{text}</title>{bands}</svg>'
    ).format(w=past.points, id=ident, text=description, bands=_bands(past, past.causes, _FILLS, "band"))


def bar(ratio: float | None, style: str, description: str) -> Markup:
    """Return a horizontal bar filled to `ratio`; empty and hatched by the page's style where it is not known."""
    known = ratio is not None and not math.isnan(ratio)
    filled = min(1.0, max(0.0, ratio or 0.0)) * 100 if known else 0.0
    return Markup(
        '<svg class="bar {style}{unknown}" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" '
        'aria-label="{text}"><rect class="fill" width="{filled:.1f}" height="10"/></svg>'
    ).format(style=style, unknown="" if known else " unknown", text=description, filled=filled)


def runs(values: Sequence[float]) -> Iterable[list[tuple[int, float]]]:
    """Yield the stretches of known points, as (index, value): a line is drawn within one, never across a gap."""
    for unknown, run in itertools.groupby(enumerate(values), key=lambda point: math.isnan(point[1])):
        if not unknown:
            yield list(run)


def _path(line: Line, top: float) -> Markup:
    # A single point is drawn as a dash of its own width, since a line without length is invisible.
    drawn = (f"M{_corners(run, top)}" + "h1" * (len(run) == 1) for run in runs(line.values))
    return Markup('<path class="{}" d="{}"/>').format(line.style, "".join(drawn))


def _corners(run: list[tuple[int, float]], top: float) -> str:
    """Return the points of a run, without those between two equal neighbours."""
    ys = [_y(value, top) for _, value in run]
    last = len(ys) - 1
    return "L".join(
        f"{x} {y}"
        for i, ((x, _), y) in enumerate(zip(run, ys, strict=True))
        if i in (0, last) or ys[i - 1] != y or y != ys[i + 1]
    )


def _y(value: float, top: float) -> int:
    """Return the vertical position, with a margin above and below for the line's width."""
    share = min(top, max(0.0, value)) / top if top > 0 else 0.0
    return BOTTOM - int(share * (BOTTOM - TOP))


def _bands(past: History, causes: Iterable[Span], fills: dict[str, str], style: str) -> Markup:
    markups = []
    for span in causes:
        start = max(0.0, (span.since - past.began) / STEP_SECONDS)
        end = min(past.points, (span.until - past.began) / STEP_SECONDS + 1)
        if span.cause in fills and end > start:
            markups.append(
                Markup('<rect class="{}" x="{:.1f}" width="{:.1f}" height="{}" fill="{}"/>').format(
                    style, start, end - start, HEIGHT, fills[span.cause]
                )
            )
    return Markup("").join(markups)


def _ticks(past: History) -> Markup:
    """Return a tick every five minutes, or every minute where less than that is shown."""
    every = SHORT_POINTS if past.points > SHORT_POINTS else SHORT_POINTS // 5
    lines = "".join(f"M{x} 0V{HEIGHT}" for x in range(every, past.points, every))
    return Markup('<path class="tick" d="{}"/>').format(lines)
