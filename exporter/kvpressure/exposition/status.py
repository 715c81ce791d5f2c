"""The page at `/`, the documents at `/targets` and `/api/v1/diagnosis`, from the same snapshot as the metrics."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote, urlencode

from kvpressure.exposition import Snapshot, assets
from kvpressure.exposition.panel import engine_panel, gpu_card, ident
from kvpressure.exposition.wording import incident_json, seconds
from kvpressure.model.action import Action
from kvpressure.model.catalogue import CATALOGUE, NOT_KNOWN
from kvpressure.model.codec import engine_json, gpu_json, unread_json
from kvpressure.model.samples import ENGINE_SOURCE, SourceHealth
from kvpressure.model.schemas.diagnosis import VERSION
from kvpressure.model.target_status import status_of, status_of_silent
from kvpressure.model.values import clock
from kvpressure.model.verdict import Cause
from kvpressure.model.view import CALM, EngineView, cause_of, worst_first

CHARTED_ENGINES = 12
"""Engines with charts on the page: drawing one takes milliseconds, and a node may have dozens."""

_NAMES: Final = {
    ENGINE_SOURCE: "Engine metrics page",
    "file_sd": "Target files (file_sd)",
}
"""Titles of the sources without a registration; series and JSON have the short names."""

Advise = Callable[[EngineView], Sequence[Action]]
"""Returns what to do about an engine, in order; () where nothing is to be done."""


def no_advice(_: EngineView) -> Sequence[Action]:
    """Return no actions."""
    return ()


def targets_json(snapshot: Snapshot) -> dict[str, object]:
    """Return every source with its health, last error and age in seconds, `null` where it never succeeded.

    `problems` are sentences about pods and devices that are not errors of a whole source, `hints` about what is
    disabled, and how to enable it.
    """
    return {
        "t": snapshot.t,
        "sources": [_source_json(health, snapshot.t) for health in snapshot.sources],
        "problems": list(snapshot.environment.problems),
        "hints": list(snapshot.environment.hints),
    }


def targets_html(snapshot: Snapshot, metrics_path: str) -> str:
    """Return the page of every source, those that are down first."""
    sources = sorted(snapshot.sources, key=lambda source_health: source_health.up)
    return assets.render(
        "targets",
        time=clock(snapshot.t),
        down=_down(sources),
        sources=[_source_row(health, snapshot) for health in sources],
        problems=snapshot.environment.problems,
        hints=snapshot.environment.hints,
        metrics_path=metrics_path,
        css=_css(),
    )


def diagnosis_json(snapshot: Snapshot, advise: Advise = no_advice) -> dict[str, object]:
    """Return the page for programs: engines, worst first, with values and actions; GPUs. See docs/api.md.

    Histograms are on /metrics only. A silent engine has the values of its last answer. Targets that never answered come
    last.
    """
    healths = {health.target: health for health in snapshot.sources if health.source == ENGINE_SOURCE}
    engines = []
    for view in worst_first(snapshot.known):
        health = healths.get(view.key.target)
        about = advise(view), "" if health is None else health.error, status_of_silent(health)
        engines.append({**engine_json(view, *about), "incident": incident_json(view.incident)})
    unread = []
    for health in snapshot.unread:
        answering = False if health.errors else None
        never_read = unread_json(health.target, health.error, status_of(health), answering=answering)
        unread.append({**never_read, "incident": None})
    gpus = [gpu_json(view) for view in snapshot.gpus]
    return {"schema_version": VERSION, "t": snapshot.t, "engines": engines + unread, "gpus": gpus}


def status_html(
    snapshot: Snapshot,
    metrics_path: str,
    advise: Advise = no_advice,
    runbooks: Mapping[Cause, str] | None = None,
    selected: str = "",
) -> str:
    """Return the page: engines, worst first, then GPUs and sources. Foreign text is escaped.

    `runbooks` are the runbooks (names of their alerts) by cause. Charts are drawn for the `CHARTED_ENGINES` worst
    engines and for the one whose id is `selected`, which is shown open.
    """
    past, known = snapshot.histories, runbooks or {}
    unreadable = {
        source_health.target: source_health
        for source_health in snapshot.sources
        if source_health.source == ENGINE_SOURCE and not source_health.up
    }
    engines = [
        engine_panel(
            view,
            snapshot.t,
            past.engine(view.key) if past and (place < CHARTED_ENGINES or ident(view.key) == selected) else None,
            advise(view),
            _runbook(known[cause_of(view)], view) if cause_of(view) in known else "",
            selected=ident(view.key) == selected,
            unread=unreadable.get(view.key.target),
        )
        for place, view in enumerate(worst_first(snapshot.known))
    ]
    return assets.render(
        "status",
        t=repr(snapshot.t),
        time=clock(snapshot.t),
        headline=_headline(snapshot),
        icon=_icon(snapshot),
        down=_down(snapshot.sources),
        engines=engines,
        unread=[_unread(source_health) for source_health in snapshot.unread if status_of(source_health).is_trouble],
        waited_for=[
            _unread(source_health) for source_health in snapshot.unread if not status_of(source_health).is_trouble
        ],
        gpus=[gpu_card(view, past.gpu(view.labels) if past else None) for view in snapshot.gpus],
        sources=[_source_row(health, snapshot) for health in snapshot.sources],
        problems=snapshot.environment.problems,
        hints=snapshot.environment.hints,
        metrics_path=metrics_path,
        css=_css(),
        script=assets.source("page.js"),
    )


def _unread(health: SourceHealth) -> dict[str, str]:
    """Return a target of which no engine is known: what that is, and why."""
    status = status_of(health)
    known = f"{status.state}: {status.text}" if status.is_trouble else status.state
    return {"target": health.target, "state": f"{known}, never read" if health.errors else known, "error": health.error}


def content_security_policy() -> str:
    """Return the Content-Security-Policy: the page's own style and script, its own address, nothing else."""
    style, script = assets.digest(_css()), assets.digest(assets.source("page.js"))
    return (
        f"default-src 'none'; style-src {style}; script-src {script}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@functools.cache
def _css() -> str:
    return assets.source("page.css") + "".join(
        f".cause-{cause.value} {{ --fill: {row.fill}; --ink-on: {row.ink}; }}\n" for cause, row in CATALOGUE.items()
    )


def _headline(snapshot: Snapshot) -> str:
    """Return the headline: the troubles, counted over all engines, or that there are none."""
    total = len(snapshot.known) + len(snapshot.unread)
    if not total:
        return "no engine is configured or found"
    troubles = Counter(CATALOGUE[cause_of(view)].label for view in snapshot.engines if cause_of(view) not in CALM)
    healths = {health.target: health for health in snapshot.sources if health.source == ENGINE_SOURCE}
    silent = (status_of(healths[view.key.target]) for view in snapshot.silent if view.key.target in healths)
    unread = (*silent, *map(status_of, snapshot.unread))
    troubles.update(status.state for status in unread if status.is_trouble)
    if not troubles and not snapshot.known:
        return f"{total} engine{'s' * (total != 1)}: not read yet"
    counted = troubles or Counter(CATALOGUE[cause_of(view)].label for view in snapshot.engines)
    counts = ", ".join(f"{number} {label}" if len(counted) > 1 else label for label, number in counted.items())
    of = f"{sum(troubles.values())} of {total}" if troubles else str(total)
    return f"{of} engine{'s' * (total != 1)}: {counts}"


def _icon(snapshot: Snapshot) -> str:
    """Return the tab's icon in the colour of the worst cause."""
    ordered = worst_first(snapshot.known)
    fill = CATALOGUE[cause_of(ordered[0]) if ordered else NOT_KNOWN].fill
    return (
        "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E"
        f"%3Ccircle cx='4' cy='4' r='4' fill='%23{fill[1:]}'/%3E%3C/svg%3E"
    )


def _runbook(name: str, view: EngineView) -> str:
    """Return the address of a runbook, filled in for this engine."""
    labels = {
        "namespace": view.namespace,
        "pod": view.pod,
        "target": view.shown.target,
        "model": view.shown.model_name,
        "engine": view.shown.rank,
    }
    known = {label: value for label, value in labels.items() if value}
    return f"/runbooks/{quote(name, safe='')}?{urlencode(known, errors='replace')}"


def _down(sources: Sequence[SourceHealth]) -> str:
    down = sum(not (health.up or health.absent or health.not_read) for health in sources)
    return f"{down} of {len(sources)} sources down" if down else ""


def _source_json(health: SourceHealth, now: float) -> dict[str, object]:
    return {
        "source": health.source,
        "target": health.target,
        "up": health.up,
        "present": not health.absent,
        "reason": health.reason,
        "error": health.error,
        "age_seconds": None if health.last_success is None else round(max(0.0, now - health.last_success), 3),
        "duration_seconds": None if math.isnan(health.duration_seconds) else round(health.duration_seconds, 6),
        "usual_seconds": None if health.usual_seconds is None else round(health.usual_seconds, 6),
        "longest_seconds": None if health.longest_seconds is None else round(health.longest_seconds, 6),
        "errors": dict(health.errors),
    }


def _source_row(health: SourceHealth, snapshot: Snapshot) -> dict[str, object]:
    """Return a source's row, with how long reads take, and the longest where that is much longer."""
    usual, longest = health.usual_seconds, health.longest_seconds
    takes = "" if usual is None else seconds(usual)
    if usual is not None and longest is not None and longest >= max(1.0, 2 * usual):
        takes += f", up to {seconds(longest)}"
    named = snapshot.source_names.get(health.source) or _NAMES.get(health.source)
    name = named or health.source[:1].upper() + health.source[1:].replace("_", " ")
    return {**_source_json(health, snapshot.t), "takes": takes, "name": name}
