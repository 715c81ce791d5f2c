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
        instance = "{{ . | first | label `instance` }}"
        up = f"{{{{ with query `up{{{options.selector}}} == 1` }}}}"
        return f"{up}http://{instance}/runbooks/{alert}{{{{ else }}}}runbooks/{alert}.md in the bundle{{{{ end }}}}"
    return f"{options.runbook_url.rstrip('/')}/{alert}?{_query(_LABELS[component])}"


def dashboard_url(options: Options, component: str) -> str:
    """The address of Grafana's board, or of the exporter's own page; a Prometheus template."""
    if not options.dashboard_url:
        return "http://{{ $labels.instance }}/"
    own = {name: label for name, label in _LABELS[component].items() if name in {"namespace", "target", "instance"}}
    board = BOARDS.get(component, "kvpressure-engine")
    return f"{options.dashboard_url.rstrip('/')}/d/{board}?{_query(own, prefix='var-')}"


def _query(labels: dict[str, str], prefix: str = "") -> str:
    return "&".join(f"{prefix}{name}={{{{ $labels.{label} | urlquery }}}}" for name, label in labels.items())
