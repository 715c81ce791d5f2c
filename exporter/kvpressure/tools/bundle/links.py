"""The addresses in an alert: its runbook, filled in for what the alert is about, and the board that shows it."""

from __future__ import annotations

from typing import Final

from kvpressure.tools.bundle.options import Options

_ENGINE: Final = {
    "namespace": "namespace",
    "pod": "pod",
    "target": "target",
    "model": "model_name",
    "engine": "engine",
    "instance": "instance",
}
_LABELS: Final[dict[str, dict[str, str]]] = {
    "deployment": {"namespace": "namespace", "model": "model_name"},
    "engine": _ENGINE,
    "gpu": _ENGINE,
    "limits": _ENGINE,
    "node": _ENGINE,
    "container": {"namespace": "namespace", "pod": "pod", "instance": "instance"},
    "exporter": {"target": "target", "instance": "instance"},
    "vllm": {name: label for name, label in _ENGINE.items() if name != "target"},
}
"""By component: what a runbook's address says of the alert, and the label that each of it comes from."""

COMPONENTS: Final = tuple(_LABELS)
BOARDS: Final = {"exporter": "kvpressure-exporter", "deployment": "kvpressure-fleet", "vllm": "kvpressure-vllm-only"}
"""Grafana uid by component; the engine's board for all others."""

_INSTANCE: Final = "{{ $labels.instance }}"
_VARIABLES: Final = {"namespace": "namespace", "target": "target", "instance": "instance", "model": "model_name"}
_OF_A_BOARD: Final = {"deployment": {"namespace", "model"}, "vllm": {"namespace", "model", "instance"}}


def links(options: Options, alert: str, component: str, *, exporter_answers: bool) -> dict[str, str]:
    """Return the annotations `runbook_url` and `dashboard_url`, Prometheus templates, where a base URL is set."""
    found, labels = {}, _LABELS[component]
    if options.runbook_url:
        found["runbook_url"] = _runbook(options, alert, labels, exporter_answers=exporter_answers)
    if options.dashboard_url:
        board = f"{options.dashboard_url.rstrip('/')}/d/{BOARDS.get(component, 'kvpressure-engine')}"
        wanted = _OF_A_BOARD.get(component, {"namespace", "target", "instance"})
        own = {_VARIABLES[name]: label for name, label in labels.items() if name in wanted}
        found["dashboard_url"] = f"{board}?{_query(own, prefix='var-')}" if exporter_answers else board
    return found


def _runbook(options: Options, alert: str, labels: dict[str, str], *, exporter_answers: bool) -> str:
    """Return the runbook's URL: of any other exporter that answers where the alert is about one that does not."""
    if _INSTANCE in options.runbook_url and not (exporter_answers and "instance" in labels):
        another = options.runbook_url.replace(_INSTANCE, "{{ . | first | label `instance` }}").rstrip("/")
        otherwise = f"{{{{ else }}}}runbooks/{alert}.md in the bundle{{{{ end }}}}"
        return f"{{{{ with query `up{{{options.selector}}} == 1` }}}}{another}/{alert}{otherwise}"
    return f"{options.runbook_url.rstrip('/')}/{alert}?{_query(labels)}"


def _query(labels: dict[str, str], prefix: str = "") -> str:
    return "&".join(f"{prefix}{name}={{{{ $labels.{label} | urlquery }}}}" for name, label in labels.items())
