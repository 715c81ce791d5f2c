"""PURE: pictures of an incident: lines over time with the trouble shaded, as SVG whose text is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from kvpressure.exposition.charts import runs
from kvpressure.exposition.wording import quantity
from kvpressure.model.catalogue import CATALOGUE as CAUSES
from kvpressure.model.severity import TROUBLE
from kvpressure.model.verdict import Cause
from kvpressure.printable import clean
from kvpressure.tools.incidents.document import engine_of

Json = Mapping[str, Any]

WIDTH: Final = 600.0
HEIGHT: Final = 120.0
TOP: Final = 4.0
MAX_ON_TIMELINE: Final = 400
ROW: Final = 14

_CHARTS: Final = (
    ("requests", (("running", "running"), ("waiting", "waiting")), "sequences", None),
    ("KV cache used", (("kv_usage_ratio", "KV cache used"),), "ratio", 1.0),
    ("generated tokens/s", (("tokens_per_second", "tokens/s"),), "", None),
)


def charts(number: int, incident: Json) -> Iterator[tuple[str, str, Markup]]:
    """Title, legend and picture of what is known of one incident; `number` makes their ids unique."""
    picture = incident["picture"]
    if picture is None or len(picture["t"]) < 2:
        return
    for place, (title, lines, unit, most) in enumerate(_CHARTS):
        values = [[math.nan if value is None else float(value) for value in picture[name]] for name, _ in lines]
        known = [value for line in values for value in line if not math.isnan(value)]
        if not known:
            continue
        top = most or max(known) * 1.05 or 1.0
        highest = f"up to {quantity(max(known), unit)}"
        named = f"{' (solid), '.join(name for _, name in lines)} (dashed), " if len(lines) > 1 else ""
        legend = f"{named}{highest}"
        yield title, legend, _svg(f"i{number}c{place}", f"{title}: {legend}", picture, values, top)


def timeline(document: Json) -> Markup:
    """Every incident as a bar on the row of its engine, over the whole time that was looked at."""
    incidents = document["incidents"][:MAX_ON_TIMELINE]
    rows = {engine: row for row, engine in enumerate(dict.fromkeys(map(engine_of, incidents)))}
    length = max(1.0, document["until"] - document["since"])
    bars = []
    for one in incidents:
        x = WIDTH * (one["began"] - document["since"]) / length
        width = max(1.5, WIDTH * one["seconds"] / length)
        y = ROW * rows[engine_of(one)]
        look = CAUSES[Cause(one["cause"])]
        bars.append(
            Markup('<rect x="{:.1f}" y="{}" width="{:.1f}" height="{}" fill="{}"><title>{}, {}</title></rect>').format(
                x, y + 2, width, ROW - 4, look.fill, clean(one["target"]), look.label
            )
        )
    return Markup(
        '<svg class="timeline" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="Incidents over time, a row for each engine">{}</svg>'
    ).format(WIDTH, ROW * max(1, len(rows)), Markup("").join(bars))


def _svg(ident: str, text: str, picture: Json, lines: Sequence[Sequence[float]], top: float) -> Markup:
    times = picture["t"]
    span = max(1e-9, times[-1] - times[0])
    places = [WIDTH * (t - times[0]) / span for t in times]
    return Markup(
        '<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-labelledby="{}">'
        '<title id="{}">{}</title>{}{}</svg>'
    ).format(
        WIDTH,
        HEIGHT,
        ident,
        ident,
        text,
        Markup("").join(_shades(places, picture["cause"])),
        Markup("").join(_path(style, places, line, top) for style, line in zip("ab", lines, strict=False)),
    )


def _shades(places: Sequence[float], causes: Sequence[str]) -> Iterator[Markup]:
    """Return the times of trouble, in the colours of their causes."""
    begin = 0
    for index in range(1, len(causes) + 1):
        if index < len(causes) and causes[index] == causes[begin]:
            continue
        cause = Cause(causes[begin])
        if cause in TROUBLE:
            x, end = places[begin], places[min(index, len(places) - 1)]
            yield Markup('<rect class="shade" x="{:.1f}" width="{:.1f}" height="{}" fill="{}"/>').format(
                x, max(1.0, end - x), HEIGHT, CAUSES[cause].fill
            )
        begin = index


def _path(style: str, places: Sequence[float], values: Sequence[float], top: float) -> Markup:
    drawn = [
        "M" + "L".join(f"{places[index]:.1f} {_y(value, top):.1f}" for index, value in run) + "h1" * (len(run) == 1)
        for run in runs(values)
    ]
    return Markup('<path class="{}" d="{}"/>').format(style, "".join(drawn))


def _y(value: float, top: float) -> float:
    return HEIGHT - TOP - min(1.0, max(0.0, value / top)) * (HEIGHT - 2 * TOP)
