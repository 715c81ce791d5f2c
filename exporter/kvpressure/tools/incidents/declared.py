"""Limits that an exporter told beside the engines' own series: what it read of how they were started."""

from __future__ import annotations

from typing import Final

from kvpressure.model.environment import LIMIT_NAMES, DeclaredLimit
from kvpressure.model.family import PREFIX
from kvpressure.tools.incidents.client import Prometheus
from kvpressure.tools.incidents.errors import PrometheusError
from kvpressure.tools.incidents.names import Target
from kvpressure.tools.incidents.paging import Span

Declared = dict[tuple[str, str, str], tuple[DeclaredLimit, ...]]
"""By cluster, namespace and pod, as `pod_of` gives them of a target."""

MAX_SIMULATED_SECONDS: Final = 30 * 86_400.0
WHERE: Final = "the exporter's series"
_OF: Final = "max by (cluster, namespace, pod, limit)"


def pod_of(target: Target) -> tuple[str, str, str]:
    """Return the cluster, namespace and pod of a target, each "" where it has none.

    Clusters have pods of the same name.
    """
    return target.get("cluster"), target.namespace, target.pod


def declared_there(server: Prometheus, span: Span) -> Declared:
    """Return what was declared last in that time; {} where no exporter told any, or the server does not say."""
    window = f"[{round(min(MAX_SIMULATED_SECONDS, span.seconds))}s]"
    value, known = (f'last_over_time({PREFIX}limit_{what}{{pod!=""}}{window})' for what in ("value", "declared"))
    try:
        rows = server.instant(f"{_OF} ({value}) and {_OF} ({known}) == 1", span.end)
    except PrometheusError:  # they make verdicts surer, and are not asked for by anybody
        return {}
    found: Declared = {}
    for row in rows:
        labels, (_, number) = row["metric"], row["value"]
        if labels.get("limit") in LIMIT_NAMES:
            key = (labels.get("cluster", ""), labels.get("namespace", ""), labels.get("pod", ""))
            found[key] = (*found.get(key, ()), DeclaredLimit(labels["limit"], float(number), WHERE))
    return found
