"""Which alerts of kvpressure fired, as the Prometheus that evaluates its rules recorded them in `ALERTS`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvpressure.printable import distinct
from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.names import Json, Target, rank_of
from kvpressure.prometheus.paging import Span, joined
from kvpressure_incidents.reported import ENGINE_LABELS, EVERY_SECONDS, Key, Rows, key_of, page_of, rows_of

LATE_SECONDS: Final = 300.0
"""An alert that fires so shortly after an incident fires because of it."""

WINDOW_SECONDS: Final = 60.0
"""No group of the rules is evaluated more seldom."""

FIRING: Final = "firing"
_LABELS: Final = ", ".join(("alertname", "alertstate", "severity", "instance", *ENGINE_LABELS))
_EXPR: Final = f'max by ({_LABELS}) (max_over_time(ALERTS{{alertname=~"KVPressure.+"}}[{WINDOW_SECONDS:.0f}s]))'


@dataclass(frozen=True, slots=True)
class Alert:
    """What fired: the alert's name, its severity ("" without one), and the engine or model that its labels name."""

    name: str
    severity: str
    key: Key


@dataclass(slots=True)
class Recorded:
    """When each alert fired, to half a minute; `any` says whether the Prometheus has alerts of kvpressure at all."""

    any: bool = False
    fired: dict[Alert, list[Span]] = field(default_factory=dict)


def read_page(server: Prometheus, page: Span) -> Rows:
    """Return the alerts of kvpressure that were pending or firing in a page. Raises PrometheusError."""
    return rows_of(server, _EXPR, page)


def recorded(answers: Iterable[Rows]) -> Recorded:
    """Return what fired, from the answers of all pages."""
    record = Recorded()
    for labels, spans in (row for answer in answers for row in answer):
        record.any = True
        if labels.get("alertstate") != FIRING:
            continue
        # Without an exporter the series are the engine's own, and so is the address.
        key = key_of(labels)
        key = key._replace(target=key.target or labels.get("instance", ""))
        alert = Alert(labels["alertname"], labels.get("severity", ""), key)
        # A value at `t` is of some moment of the window before.
        half = EVERY_SECONDS / 2
        moments = (Span(begin - half, end - WINDOW_SECONDS + half) for begin, end, _ in spans)
        record.fired.setdefault(alert, []).extend(moments)
    record.fired = {alert: joined(spans, 2 * WINDOW_SECONDS) for alert, spans in record.fired.items()}
    return record


def attach(incidents: Sequence[Json], alerts: Recorded, targets: Sequence[Target], until: float) -> None:
    """Set which alerts fired in each incident, or because of it; `until` (unix seconds) ends the time looked at.

    An alert of one engine is of that engine's incidents, one of a model of those of all its engines.
    """
    by_target: dict[str, list[Json]] = {}
    for incident in incidents:
        incident["fired"] = []
        by_target.setdefault(incident["target"], []).append(incident)
    for alert, spans in alerts.fired.items():
        named = [
            incident
            for name in _names(alert.key, targets)
            for incident in by_target.get(name, ())
            if _same(alert.key, incident)
        ]
        for incident in named:
            incident["fired"] += [_json(alert, span, until) for span in spans if _overlap(incident, span)]
    for incident in incidents:
        incident["fired"].sort(key=lambda fired: (fired["began"], fired["alert"], fired["severity"] or ""))


def _names(key: Key, targets: Sequence[Target]) -> set[str]:
    """Return the names of the targets that an alert is of."""
    if key.pod or key.target:
        return page_of(key, targets)
    if not key.model_name:
        return set()  # of an exporter or a gateway
    return {
        target.name
        for target in targets
        if (not key.namespace or target.namespace in {"", key.namespace})
        and (not key.cluster or target.get("cluster") in {"", key.cluster})
    }


def _same(key: Key, incident: Mapping[str, str]) -> bool:
    """Whether an alert's model and rank, where it names them, are those of an incident on its page."""
    model = key.model_name
    # A long name was cut where the exporter exported it.
    return (not model or distinct(incident["model_name"], len(model)) == model) and (
        key.engine in {"", incident["engine"], rank_of(incident["engine"])}
    )


def _overlap(incident: Json, span: Span) -> bool:
    early = EVERY_SECONDS / 2
    over = float("inf") if incident["ended"] is None else incident["ended"] + LATE_SECONDS
    return bool(span.start <= over and span.end >= incident["began"] - early)


def _json(alert: Alert, span: Span, until: float) -> Json:
    going_on = span.end > until - WINDOW_SECONDS - EVERY_SECONDS / 2
    return {
        "alert": alert.name,
        "severity": alert.severity or None,
        "began": span.start,
        "ended": None if going_on else span.end,
        "seconds": round((until if going_on else span.end) - span.start, 3),
    }
