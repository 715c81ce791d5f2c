"""PURE: a look back as Markdown, one section an incident: what a post-mortem starts from.

Names of engines come from outside: what Markdown would take for more than text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from kvpressure.exposition.wording import clock, duration, percent, quantity
from kvpressure.model.catalogue import CATALOGUE as CAUSES
from kvpressure.model.verdict import Cause
from kvpressure.printable import clean
from kvpressure.tools.incidents import words
from kvpressure.tools.incidents.names import Json

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~!&])")


def plain(text: object) -> str:
    r"""Text in one line that means nothing to Markdown.

    >>> print(plain("a|b <i>"))
    a\|b \<i\>
    """
    return _SPECIAL.sub(r"\\\1", clean(str(text)))


def fenced(lines: list[str]) -> Iterator[str]:
    """Shell lines as they are."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (f"{fence}sh", *map(clean, lines), fence)


def report(document: Json) -> str:
    """Return the whole document."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Json) -> Iterator[str]:
    head, *rest = words.summary(document)
    yield from ("# Incidents of engines", "", plain(head), "")
    yield from (f"- {plain(line.strip())}" for line in rest)
    if document["incidents"]:
        yield from ("", "| # | began (UTC) | length | engine | cause | lost tokens |", "|---|---|---|---|---|---|")
    for number, one in enumerate(document["incidents"], 1):
        began, length = clock(one["began"], day=True).removesuffix(" UTC"), duration(one["seconds"])
        cells = (number, began, length, words.engine_name(one), words.cause_label(one), words.lost(one))
        yield "| " + " | ".join(map(plain, cells)) + " |"
    for number, one in enumerate(document["incidents"], 1):
        yield from _incident(number, one)


def _incident(number: int, one: Json) -> Iterator[str]:
    yield from ("", f"## {number}. {plain(words.cause_label(one))}: {plain(words.engine_name(one))}", "")
    yield f"**{plain(words.when(one))}.** {plain(words.meaning(one))} Lost: {plain(words.lost(one))}."
    yield from ("", "### What happened", "", "| time (UTC) | what |", "|---|---|")
    for t, text in sorted(_timeline(one)):
        yield f"| {clock(t, day=True).removesuffix(' UTC')} | {plain(text)} |"
    yield from ("", "### Why", "")
    if one["grounds"]:
        yield f"- {plain(one['grounds'])}"
    if one["confidence"] is not None:
        yield f"- Confidence {percent(one['confidence'])}, from samples {one['step_seconds']:.0f} s apart."
    if peak := words.peak(one):
        yield f"- At most: {plain(peak)}."
    if reported := words.exporter(one):
        yield f"- The exporter {plain(reported)}."
    for name, symptom in one["symptoms"].items():
        if symptom["state"]:
            unit = "" if symptom["unit"] == "count" else symptom["unit"]
            known = symptom["threshold"] is not None
            limit = f" (threshold {plain(quantity(symptom['threshold'], unit))})" if known else ""
            yield f"- `{clean(name).replace('`', '')}`: {plain(symptom['text'])}{limit}"
    for missing in one["missing"]:
        yield f"- Not known: {plain(missing['what'])}. {plain(missing['how'])}."
    yield from _actions(one)
    yield from ("", "### To be filled in", "", "- Impact on users:", "- What was done, and when:", "- Follow-ups:")


def _timeline(one: Json) -> Iterator[tuple[float, str]]:
    yield one["began"], f"{words.cause_label(one)} begins"
    for fired in one["fired"]:
        whose = "copied rule" if fired["by"] == "copied" else "kvpressure"
        yield fired["at"], f"{fired['rule']} ({whose}) would have fired"
    if not any(fired["by"] == "copied" for fired in one["fired"]):
        yield one["began"], "none of the copied rules would have fired"
    picture = one["picture"] or {"t": (), "cause": ()}
    for (_, before), (t, after) in pairwise(zip(picture["t"], picture["cause"], strict=True)):
        if before != after and one["began"] < t:
            yield t, f"verdict: {CAUSES[Cause(after)].label}"
    if one["ended"] is not None:
        yield one["ended"], "the trouble last showed"


def _actions(one: Json) -> Iterator[str]:
    yield from ("", "### What would have helped", "")
    if not one["actions"]:
        yield f"{words.NO_ACTION[:1].upper()}{words.NO_ACTION[1:]}."
    for action in one["actions"]:
        change = plain(words.change(action, "→"))
        yield f"{action['order']}. **{plain(action['title'])}**{change}. {plain(action['why'])}"
        if action["expected"]:
            yield f"   Expected: {plain(action['expected']['text'])}"
        elif action["not_predicted"]:
            yield f"   Not predicted: {plain(action['not_predicted'])}"
        if action["commands"]:
            yield ""
            yield from (f"   {line}" for line in fenced(action["commands"]))
