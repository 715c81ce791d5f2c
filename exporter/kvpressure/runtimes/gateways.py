"""What stands in front of engines, by its metrics: the endpoint picker, whose queue is read, and others that are known.

The endpoint picker (EPP) of Gateway API's inference extension and of llm-d holds requests back while the pool of its
engines is saturated (flow control). The names have three spellings; where two are on one scrape, they are the same
value twice (docs/internals/gateway-metrics.md has names, labels, units and the versions that they were taken from).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.model.record import record
from kvpressure.promtext.lines import Series
from kvpressure.runtimes.table import LARGEST_VALUE


@dataclass(frozen=True, slots=True)
class GatewayRow:
    """One signal: its metrics, best first, of which the first that is there counts, and the label of its pool.

    Series of one pool that differ in other labels (a priority, a tenant, a model) are merged with `merge`.
    """

    signal: str
    names: tuple[str, ...]
    pool_label: str
    merge: Callable[[Sequence[float]], float] = sum


def _flow(name: str) -> tuple[str, ...]:
    return tuple(
        f"{prefix}flow_control_{name}" for prefix in ("llm_d_epp_", "llm_d_router_epp_", "inference_extension_")
    )


def _pool(name: str, before: str = "") -> tuple[str, ...]:
    return (f"llm_d_epp_{name}", f"llm_d_router_epp_{name}", f"inference_pool_{before or name}")


ROWS: Final = (
    GatewayRow("queue_requests", _flow("queue_size"), "inference_pool"),
    GatewayRow("waited_seconds", _flow("request_queue_duration_seconds_sum"), "inference_pool"),
    GatewayRow("waited_requests", _flow("request_queue_duration_seconds_count"), "inference_pool"),
    GatewayRow("saturation_ratio", _flow("pool_saturation"), "inference_pool", max),
    GatewayRow("kv_usage_ratio", _pool("average_kv_cache_utilization"), "name", max),
    GatewayRow("engine_queue_requests", _pool("average_queue_size"), "name", max),
    GatewayRow("ready_engines", _pool("ready_endpoints", "ready_pods"), "name", max),
)

NAMES: Final = frozenset(name.encode() for row in ROWS for name in row.names)

OTHERS: Final = {
    # Gauges of each engine behind it, under vLLM's own names. Engines have neither; `vllm:healthy_pods_total` is no
    # sign, because some engines' adapters have it too.
    "vllm:current_qps": "vLLM production-stack's router",
    "router_cpu_usage_percent": "vLLM production-stack's router",
    "gateway_request_total": "AIBrix' gateway",
    "gateway_in_flight_requests": "AIBrix' gateway",
    "inference_extension_info": "a gateway's endpoint picker",
    "llm_d_epp_info": "a gateway's endpoint picker",
    "llm_d_router_epp_info": "a gateway's endpoint picker",
}
"""A metric that no engine has, and whose it is."""

OTHER_NAMES: Final = frozenset(name.encode() for name in OTHERS)


@record
class PoolReading:
    """What one scrape reports of a pool: `signals` by the names of `ROWS`; one that is not on it has no key."""

    pool: str
    signals: dict[str, float]


def pools_of(series: Sequence[Series], values: Sequence[float]) -> tuple[PoolReading, ...]:
    """Return what a scrape reports of each pool, by name; NaN, negative and too high values are left out."""
    found: dict[str, dict[str, list[float]]] = {}
    for one, value in zip(series, values, strict=True):
        if 0 <= value <= LARGEST_VALUE:
            pool = dict(one.labels).get(_POOL_LABELS.get(one.name, ""), "")
            found.setdefault(pool, {}).setdefault(one.name, []).append(value)
    if "" in found and len(found) == 2:
        # Early versions have no label of the pool on their queue, and serve one pool each.
        rest = found.pop("")
        next(iter(found.values())).update(rest)
    return tuple(PoolReading(pool, _signals(readings)) for pool, readings in sorted(found.items()))


_POOL_LABELS: Final = {name: row.pool_label for row in ROWS for name in row.names}


def _signals(readings: dict[str, list[float]]) -> dict[str, float]:
    chosen = ((row, next((readings[name] for name in row.names if name in readings), None)) for row in ROWS)
    merged = {row.signal: float(row.merge(values)) for row, values in chosen if values is not None}
    return {signal: value for signal, value in merged.items() if value <= LARGEST_VALUE}


def known_gateway(series: Sequence[Series]) -> str:
    """Return whose scrape it is that has these series, where it is a gateway's that no engine's can be; else ""."""
    return next((OTHERS[one.name] for one in series if one.name in OTHERS), "")
