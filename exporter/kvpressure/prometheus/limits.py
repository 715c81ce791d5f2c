"""Limits that an exporter declared of engines, as a Prometheus has its series."""

from __future__ import annotations

from typing import Final

from kvpressure.model.environment import LIMIT_NAMES, DeclaredLimit
from kvpressure.model.family import PREFIX
from kvpressure.prometheus.answers import PrometheusError
from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.names import Target
from kvpressure.prometheus.paging import Span

MAX_LOOK_BACK_SECONDS: Final = 30 * 86_400.0
WHERE: Final = "the exporter's series"
_OF: Final = "max by (cluster, namespace, pod, limit)"

Declared = dict[tuple[str, str, str], tuple[DeclaredLimit, ...]]
"""Limits by cluster, namespace and pod, as `pod_of` gives them of a target."""


def pod_of(target: Target) -> tuple[str, str, str]:
    """Return the cluster, namespace and pod of a target, each "" where it has none.

    Clusters have pods of the same name.
    """
    return target.get("cluster"), target.namespace, target.pod


def declared_there(server: Prometheus, span: Span) -> Declared:
    """Return the engines' declared limits that an exporter read last in that time; {} without any."""
    window = f"[{round(min(MAX_LOOK_BACK_SECONDS, span.seconds))}s]"
    value, known = (f'last_over_time({PREFIX}limit_{what}{{pod!=""}}{window})' for what in ("value", "declared"))
    try:
        rows = server.instant(f"{_OF} ({value}) and {_OF} ({known}) == 1", span.end)
    except PrometheusError:  # verdicts are possible without limits
        return {}
    found: Declared = {}
    for row in rows:
        labels, (_, number) = row["metric"], row["value"]
        if labels.get("limit") in LIMIT_NAMES:
            key = (labels.get("cluster", ""), labels.get("namespace", ""), labels.get("pod", ""))
            found[key] = (*found.get(key, ()), DeclaredLimit(labels["limit"], float(number), WHERE))
    return found
