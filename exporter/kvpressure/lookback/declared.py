"""Limits that an exporter told beside the engines' own series: what it read of how they were started."""

from __future__ import annotations

from typing import Final

from kvpressure.exposition.families import PREFIX
from kvpressure.lookback.client import Prometheus
from kvpressure.lookback.errors import PrometheusError
from kvpressure.lookback.paging import Span
from kvpressure.model.workload import LIMIT_NAMES, DeclaredLimit

Declared = dict[tuple[str, str], tuple[DeclaredLimit, ...]]
"""By namespace and pod."""

LONGEST_SECONDS: Final = 30 * 86_400.0
WHERE: Final = "the exporter's series"
_OF: Final = "max by (namespace, pod, limit)"


def declared_there(server: Prometheus, span: Span) -> Declared:
    """What was declared last in that time; {} where no exporter told any, or the server does not say."""
    window = f"[{round(min(LONGEST_SECONDS, span.seconds))}s]"
    value, known = (f'last_over_time({PREFIX}limit_{what}{{pod!=""}}{window})' for what in ("value", "declared"))
    try:
        rows = server.instant(f"{_OF} ({value}) and {_OF} ({known}) == 1", span.end)
    except PrometheusError:  # they make verdicts surer, and are not asked for by anybody
        return {}
    found: Declared = {}
    for row in rows:
        labels, (_, number) = row["metric"], row["value"]
        if labels.get("limit") in LIMIT_NAMES:
            key = (labels.get("namespace", ""), labels.get("pod", ""))
            found[key] = (*found.get(key, ()), DeclaredLimit(labels["limit"], float(number), WHERE))
    return found
