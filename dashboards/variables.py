"""The variables that choose engines, the same on every dashboard that is about engines."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders.dashboard import QueryVariable

from dashboards.board import one_of, variable
from dashboards.queries import CHOSEN, EXPORTERS, SELECTOR, of, worst_exporters, worst_targets

_CLUSTER: Final = 'cluster=~"$cluster"'
_LEVELS: Final = (
    ("namespace", "Namespace", 'namespace=~"$namespace"'),
    ("model_name", "Model", 'model_name=~"$model_name"'),
    ("target", "Target", 'target=~"$target"'),
    ("engine", "Rank", ""),
)
"""Each is asked for within the ones before it."""


def engine_variables(count: int) -> list[QueryVariable]:
    """Cluster, namespace, model, target and engine; then, hidden, what follows from them.

    `shown` is the `count` worst targets of those chosen, `instance` the exporter that serves their runbooks (alerts
    name it in their links), `pod` the pods they run in.
    """
    found = [variable("cluster", "Cluster", _values("bottleneck_confidence_ratio", SELECTOR, "cluster"))]
    matchers = f"{SELECTOR},{_CLUSTER}"
    for name, label, matcher in _LEVELS:
        found.append(variable(name, label, _values("bottleneck_confidence_ratio", matchers, name)))
        matchers = f"{matchers},{matcher}"
    return [
        *found,
        variable(
            "shown",
            "Shown",
            f"query_result({worst_targets(count)})",
            hidden=True,
            regex='/target="([^"]+)"/',
            everything="",
        ),
        one_of("instance", "Exporter", _values("bottleneck_confidence_ratio", CHOSEN, "instance")),
        variable("pod", "Pod", _values("bottleneck_confidence_ratio", CHOSEN, "pod"), hidden=True, everything=""),
    ]


def exporter_variables(count: int) -> list[QueryVariable]:
    """Cluster, exporter and what it reads; `shown` is the `count` exporters that are worst off."""
    return [
        variable("cluster", "Cluster", _values("up", SELECTOR, "cluster")),
        variable("instance", "Exporter", _values("up", f"{SELECTOR},{_CLUSTER}", "instance")),
        variable("target", "Target", _values("source_up", EXPORTERS, "target")),
        variable(
            "shown",
            "Shown",
            f"query_result({worst_exporters(count)})",
            hidden=True,
            regex='/instance="([^"]+)"/',
            everything="",
        ),
    ]


def _values(series: str, matchers: str, label: str) -> str:
    return f"label_values({of(series, matchers)}, {label})"
