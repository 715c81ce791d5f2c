"""The addresses in an alert: its runbook, filled in for what the alert is about, and the page that shows it."""

from __future__ import annotations

from typing import Final

from kvpressure.bundle.options import RUNBOOK_URL, Options

_ENGINE: Final = {
    "namespace": "namespace",
    "pod": "pod",
    "target": "target",
    "model": "model_name",
    "engine": "engine",
    "instance": "instance",
}
_LABELS: Final[dict[str, dict[str, str]]] = {
    "engine": _ENGINE,
    "gpu": _ENGINE,
    "limits": _ENGINE,
    "node": _ENGINE,
    "container": {"namespace": "namespace", "pod": "pod", "instance": "instance"},
    "exporter": {"target": "target", "instance": "instance"},
}
"""By component: what a runbook's address says of the alert, and the label that each of it comes from."""

COMPONENTS: Final = tuple(_LABELS)
BOARDS: Final = {"exporter": "kvpressure-exporter"}
"""Grafana uid by component; the engine's board for all others."""


def runbook_url(options: Options, alert: str, component: str, *, exporter_answers: bool) -> str:
    """The runbook's address, a Prometheus template.

    An exporter that does not answer cannot serve the runbook of that: its link goes through any other that does.
    """
    if not exporter_answers and options.runbook_url == RUNBOOK_URL:
        return _through_another(options, f"/runbooks/{alert}", f"runbooks/{alert}.md in the bundle")
    return f"{options.runbook_url.rstrip('/')}/{alert}?{_query(_LABELS[component])}"


def dashboard_url(options: Options, component: str, *, exporter_answers: bool) -> str:
    """The address of Grafana's board, or of the exporter's own page; a Prometheus template.

    That of an exporter which does not answer leads to any other that does: the alert may not even name one.
    """
    if not options.dashboard_url:
        if exporter_answers:
            return "http://{{ $labels.instance }}/"
        return _through_another(options, "/", "none: no exporter answers")
    if not exporter_answers:
        return f"{options.dashboard_url.rstrip('/')}/d/{BOARDS['exporter']}"
    own = {name: label for name, label in _LABELS[component].items() if name in {"namespace", "target", "instance"}}
    board = BOARDS.get(component, "kvpressure-engine")
    return f"{options.dashboard_url.rstrip('/')}/d/{board}?{_query(own, prefix='var-')}"


def _through_another(options: Options, path: str, otherwise: str) -> str:
    instance = "{{ . | first | label `instance` }}"
    up = f"{{{{ with query `up{{{options.selector}}} == 1` }}}}"
    return f"{up}http://{instance}{path}{{{{ else }}}}{otherwise}{{{{ end }}}}"


def _query(labels: dict[str, str], prefix: str = "") -> str:
    return "&".join(f"{prefix}{name}={{{{ $labels.{label} | urlquery }}}}" for name, label in labels.items())
