"""A look back as one HTML file without scripts or external resources, and as Markdown.

The HTML has charts over time with the trouble shaded, as SVG; the Markdown one section for each incident, the start of
a post-mortem. Names of engines are not trusted: they are escaped in both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import jinja2
from markupsafe import Markup

from kvpressure.exposition.charts import runs
from kvpressure.exposition.wording import duration, percent, quantity
from kvpressure.model.catalogue import CATALOGUE as CAUSES
from kvpressure.model.values import clock
from kvpressure.model.verdict import Cause
from kvpressure.printable import clean
from kvpressure.prometheus.names import Json
from kvpressure_incidents import words

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


def as_html(document: Json) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvpressure_incidents", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Texts lose control and bidirectional characters; markup stays.
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    return environment.get_template("incidents.html.j2").render(
        document=document,
        summary=list(words.summary(document)),
        words=words,
        charts=charts,
        timeline=timeline,
        look=lambda incident: CAUSES[Cause(incident["cause"])],
        clock=clock,
        duration=duration,
        percent=percent,
    )


def charts(number: int, incident: Json) -> Iterator[tuple[str, str, Markup]]:
    """Yield title, legend and SVG of the charts of one incident; `number` makes their ids unique."""
    picture = incident["picture"]
    if picture is None or len(picture["t"]) < 2:
        return
    for place, (title, lines, unit, most) in enumerate(_CHARTS):
        values = [[math.nan if value is None else float(value) for value in picture[name]] for name, _ in lines]
        known = [value for line in values for value in line if not math.isnan(value)]
        if not known:
            continue
        top = most or max(known) * 1.05 or 1.0
        named = f"{' (solid), '.join(name for _, name in lines)} (dashed), " if len(lines) > 1 else ""
        legend = f"{named}up to {quantity(max(known), unit)}"
        yield title, legend, _svg(f"i{number}c{place}", f"{title}: {legend}", incident, values, top)


def timeline(document: Json) -> Markup:
    """Return every incident as a bar on the row of its engine, over the whole time."""
    incidents = document["incidents"][:MAX_ON_TIMELINE]
    rows = {engine: row for row, engine in enumerate(dict.fromkeys(map(words.engine_of, incidents)))}
    length = max(1.0, document["until"] - document["since"])
    bars = []
    for incident in incidents:
        x = WIDTH * (incident["began"] - document["since"]) / length
        width = max(1.5, WIDTH * incident["seconds"] / length)
        y = ROW * rows[words.engine_of(incident)]
        look = CAUSES[Cause(incident["cause"])]
        bars.append(
            Markup('<rect x="{:.1f}" y="{}" width="{:.1f}" height="{}" fill="{}"><title>{}, {}</title></rect>').format(
                x, y + 2, width, ROW - 4, look.fill, clean(incident["target"]), look.label
            )
        )
    return Markup(
        '<svg class="timeline" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="Incidents over time, a row for each engine">{}</svg>'
    ).format(WIDTH, ROW * max(1, len(rows)), Markup("").join(bars))


def _svg(ident: str, text: str, incident: Json, lines: Sequence[Sequence[float]], top: float) -> Markup:
    times = incident["picture"]["t"]
    span = max(1e-9, times[-1] - times[0])
    places = [WIDTH * (t - times[0]) / span for t in times]
    paths = Markup("").join(_path(style, places, line, top) for style, line in zip("ab", lines, strict=False))
    return Markup(
        '<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-labelledby="{}">'
        '<title id="{}">{}</title>{}{}</svg>'
    ).format(WIDTH, HEIGHT, ident, ident, text, _shade(incident, times, span), paths)


def _shade(incident: Json, times: Sequence[float], span: float) -> Markup:
    """Return the time of the incident in the colour of its cause: verdicts, which come later, do not date it."""
    ended = times[-1] if incident["ended"] is None else incident["ended"]
    x, end = (WIDTH * min(1.0, max(0.0, (t - times[0]) / span)) for t in (incident["began"], ended))
    return Markup('<rect class="shade" x="{:.1f}" width="{:.1f}" height="{}" fill="{}"/>').format(
        x, max(1.0, end - x), HEIGHT, CAUSES[Cause(incident["cause"])].fill
    )


def _path(style: str, places: Sequence[float], values: Sequence[float], top: float) -> Markup:
    def point(index: int, value: float) -> str:
        return f"{places[index]:.1f} {HEIGHT - TOP - min(1.0, max(0.0, value / top)) * (HEIGHT - 2 * TOP):.1f}"

    drawn = ["M" + "L".join(point(*place) for place in run) + "h1" * (len(run) == 1) for run in runs(values)]
    return Markup('<path class="{}" d="{}"/>').format(style, "".join(drawn))


_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~!&])")


def plain(text: object) -> str:
    r"""Return text in one line, escaped for Markdown.

    >>> print(plain("a|b <i>"))
    a\|b \<i\>
    """
    return _SPECIAL.sub(r"\\\1", clean(str(text)))


def fenced(lines: list[str]) -> Iterator[str]:
    """Yield shell lines as a code block."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (f"{fence}sh", *map(clean, lines), fence)


def as_markdown(document: Json) -> str:
    """Return the whole document."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Json) -> Iterator[str]:
    head, *rest = words.summary(document)
    yield from ("# Incidents of engines", "", plain(head), "")
    yield from (f"- {plain(line.strip())}" for line in rest)
    if document["incidents"]:
        yield from ("", "| # | began (UTC) | length | engine | cause | lost tokens |", "|---|---|---|---|---|---|")
    for number, incident in enumerate(document["incidents"], 1):
        began, length = clock(incident["began"], day=True).removesuffix(" UTC"), duration(incident["seconds"])
        cells = (number, began, length, words.engine_name(incident), words.cause_label(incident), words.lost(incident))
        yield "| " + " | ".join(map(plain, cells)) + " |"
    for number, incident in enumerate(document["incidents"], 1):
        yield from _incident(number, incident)


def _incident(number: int, incident: Json) -> Iterator[str]:
    yield from ("", f"## {number}. {plain(words.cause_label(incident))}: {plain(words.engine_name(incident))}", "")
    yield f"**{plain(words.when(incident))}.** {plain(words.meaning(incident))} Lost: {plain(words.lost(incident))}."
    yield from ("", "### What happened", "", "| time (UTC) | what |", "|---|---|")
    for t, text in sorted(_events(incident)):
        yield f"| {clock(t, day=True).removesuffix(' UTC')} | {plain(text)} |"
    yield from ("", "### Why", "")
    if incident["grounds"]:
        yield f"- {plain(incident['grounds'])}"
    if incident["confidence"] is not None:
        yield f"- Confidence {percent(incident['confidence'])}, from samples {incident['step_seconds']:.0f} s apart."
    if peak := words.peak(incident):
        yield f"- At most: {plain(peak)}."
    if reported := words.exporter(incident):
        yield f"- The exporter {plain(reported)}."
    for name, symptom in incident["symptoms"].items():
        if symptom["state"]:
            unit = "" if symptom["unit"] == "count" else symptom["unit"]
            known = symptom["threshold"] is not None
            limit = f" (threshold {plain(quantity(symptom['threshold'], unit))})" if known else ""
            yield f"- `{clean(name).replace('`', '')}`: {plain(symptom['text'])}{limit}"
    for missing in incident["missing"]:
        yield f"- Not known: {plain(missing['what'])}. {plain(missing['how'])}."
    yield from _actions(incident)
    yield from ("", "### To be filled in", "", "- Impact on users:", "- What was done, and when:", "- Follow-ups:")


def _events(incident: Json) -> Iterator[tuple[float, str]]:
    yield incident["began"], f"{words.cause_label(incident)} begins"
    for fired in incident["fired"] or ():
        yield fired["began"], f"{words.alert_name(fired)} fires, for {duration(fired['seconds'])}"
    if incident["fired"] == []:
        yield from ((incident["began"], text) for text in words.fired(incident))
    picture = incident["picture"] or {"t": (), "cause": ()}
    for (_, before), (t, after) in pairwise(zip(picture["t"], picture["cause"], strict=True)):
        if before != after and incident["began"] < t:
            yield t, f"verdict: {CAUSES[Cause(after)].label}"
    if incident["ended"] is not None:
        yield incident["ended"], "the trouble last showed"


def _actions(incident: Json) -> Iterator[str]:
    yield from ("", "### What would have helped", "")
    if not incident["actions"]:
        yield f"{words.NO_ACTION[:1].upper()}{words.NO_ACTION[1:]}."
    for action in incident["actions"]:
        change = plain(words.change(action, "→"))
        yield f"{action['order']}. **{plain(action['title'])}**{change}. {plain(action['why'])}"
        if action["expected"]:
            yield f"   Expected: {plain(action['expected']['text'])}"
        elif action["not_predicted"]:
            yield f"   Not predicted: {plain(action['not_predicted'])}"
        if action["commands"]:
            yield ""
            yield from (f"   {line}" for line in fenced(action["commands"]))
