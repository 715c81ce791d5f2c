"""What stands in front of engines, by its metrics: the endpoint picker, whose queue is read, and others that are known.

The endpoint picker (EPP) of llm-d's router, which came from Gateway API's inference extension, holds requests back
while the pool of its engines is saturated (flow control). The names have three spellings; where two are on one scrape,
they are the same value twice (docs/internals/gateway-metrics.md has names, labels, units and the versions that they
were taken from).

The router in NVIDIA Dynamo's frontend queues too (`--router-queue-threshold`), while every worker has more prompt
tokens to compute than that. Neither the use of caches nor the length of the workers' queues is its measure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvpressure.model.environment import PREFILL, ROLE_CODES
from kvpressure.model.record import record
from kvpressure.promtext.lines import Series
from kvpressure.runtimes.table import LARGEST_VALUE


@dataclass(frozen=True, slots=True)
class GatewayRow:
    """One signal: its metrics, best first, of which the first that is there counts, and the label of its pool, if any.

    Series of one pool that differ in other labels (a priority, a tenant, a model) are merged with `merge`. `where` is
    a label and its values that count.
    """

    signal: str
    names: tuple[str, ...]
    pool_label: str
    merge: Callable[[Sequence[float]], float] = sum
    where: tuple[str, frozenset[str]] | None = None


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
    # With prefill and decode apart it has a `stage` each, and `effective`, the larger, which is what it goes by.
    GatewayRow("saturation_ratio", _flow("pool_saturation"), "inference_pool", max),
    # Engines whose metrics it has not got in time: to its detector each is as if it were full.
    GatewayRow("stale_engines", ("llm_d_epp_flow_control_stale_endpoints",), "", max),
    GatewayRow("kv_usage_ratio", _pool("average_kv_cache_utilization"), "name", max),
    GatewayRow("engine_queue_requests", _pool("average_queue_size"), "name", max),
    GatewayRow("ready_engines", _pool("ready_endpoints", "ready_pods"), "name", max),
)

DYNAMO: Final = (
    # `dynamo_frontend_queued_requests` is no queue of its own: those that wait in the engine are in it too.
    GatewayRow("queue_requests", ("dynamo_frontend_router_queue_pending_requests",), "model"),
    GatewayRow("inflight_requests", ("dynamo_frontend_inflight_requests",), "model"),
    # All that it refuses; under another DYN_METRICS_PREFIX those alone that its router's queue had no room for.
    GatewayRow(
        "refused_requests",
        ("dynamo_frontend_model_rejection_total", "dynamo_frontend_router_queue_backpressure_total"),
        "model",
    ),
    # The other types (lib/llm/src/http/service/metrics.rs) are clients' own: validation, cancelled; or refusals.
    GatewayRow(
        "failed_requests",
        ("dynamo_frontend_requests_total",),
        "model",
        where=("error_type", frozenset({"internal", "response_timeout"})),
    ),
)

MEMBERS: Final = {
    "llm_d_epp_per_endpoint_queue_size": ("model_server_endpoint", "model_server_pod"),
    "llm_d_router_epp_per_endpoint_queue_size": ("model_server_endpoint", "model_server_pod"),
    "inference_pool_per_pod_queue_size": ("model_server_pod",),
}
"""A series for each engine of a pool (`name`), and the labels that have its pod, as `pod-rank-0`."""
_RANK: Final = re.compile(r"-rank-\d+$")
_WORKER: Final = re.compile(r"[0-9a-f]{1,16}")
MAX_WORKERS: Final = 4096

ROLES: Final = tuple(
    f"dynamo_frontend_worker_{name}"
    for name in ("active_decode_blocks", "active_prefill_tokens", "last_time_to_first_token_seconds")
)
"""Series for each worker, whose `worker_type` is what it does; "decode" too of those that do both."""
WORKER: Final = "dynamo_component_inflight_requests"
"""On a worker's own page, with its `worker_id` in hexadecimal digits; the frontend has it in decimal ones."""
WORKER_NAMES: Final = frozenset({WORKER.encode()})

_ALL: Final = (*ROWS, *DYNAMO)
KV_CACHE_UTIL_THRESHOLD: Final = 0.8
QUEUE_DEPTH_THRESHOLD: Final = 5.0
"""Of the endpoint picker's saturation detector, unless it is configured otherwise; in none of its series."""

NAMES: Final = frozenset(name.encode() for name in (*(name for row in _ALL for name in row.names), *MEMBERS, *ROLES))

_PICKER: Final = "a gateway's endpoint picker"
OTHERS: Final = {
    # Gauges of each engine behind it, under vLLM's own names. Engines have neither; `vllm:healthy_pods_total` is no
    # sign, because some engines' adapters have it too.
    "vllm:current_qps": "vLLM production-stack's router",
    "router_cpu_usage_percent": "vLLM production-stack's router",
    "smg_worker_health": "SMG, a model gateway",
    "sgl_router_worker_health": "SMG, a model gateway",
    "gateway_request_total": "AIBrix' gateway",
    "gateway_in_flight_requests": "AIBrix' gateway",
    **dict.fromkeys(("inference_extension_info", "llm_d_epp_info", "llm_d_router_epp_info"), _PICKER),
    **{name: _PICKER for row in ROWS for name in row.names},
    "dynamo_frontend_inflight_requests": "Dynamo's frontend",
    # Of its router, and there as its queue is also where DYN_METRICS_PREFIX has renamed the rest.
    "dynamo_component_router_requests_total": "Dynamo's frontend",
}
"""A metric that no engine has, and whose it is."""

OTHER_NAMES: Final = frozenset(name.encode() for name in OTHERS)


@record
class PoolReading:
    """What one scrape reports of a pool: `signals` by the names of the rows; one that is not on it has no key.

    `pods` are those of its engines, where they are listed. Where prefill and decode are apart, `roles` are those of its
    workers, by their id, and `queues` how many requests wait for each role. `by_load` says whether it holds requests
    back by the use of caches and the length of queues.
    """

    pool: str
    signals: dict[str, float]
    pods: frozenset[str] = frozenset()
    by_load: bool = True
    roles: Mapping[str, str] = field(default_factory=dict)
    queues: Mapping[str, float] = field(default_factory=dict)


def pools_of(series: Sequence[Series], values: Sequence[float]) -> tuple[PoolReading, ...]:
    """Return what a scrape reports of each pool, by name; NaN, negative and too high values are left out."""
    by_pool: dict[str, dict[str, list[float]]] = {}
    pods: dict[str, set[str]] = {}
    workers: dict[str, str] = {}
    queues: dict[str, float] = {}
    for sample, value in zip(series, values, strict=True):
        labels = dict(sample.labels)
        if sample.name in MEMBERS:
            pods.setdefault(labels.get("name", ""), set()).update(pod_of_member(sample.name, labels))
        elif sample.name in ROLES:
            if len(workers) < MAX_WORKERS:
                workers[labels.get("worker_id", "")] = labels.get("worker_type", "")
        elif 0 <= value <= LARGEST_VALUE and _counts(sample.name, labels):
            pool = labels.get(_POOL_LABELS.get(sample.name, ""), "")
            by_pool.setdefault(pool, {}).setdefault(sample.name, []).append(value)
            if sample.name in _QUEUES and (role := labels.get("worker_type", "")) in ROLE_CODES:
                queues[role] = queues.get(role, 0.0) + value
    if "" in by_pool and len(by_pool) == 2:
        # Early versions have no label of the pool on their queue, and serve one pool each.
        rest = by_pool.pop("")
        next(iter(by_pool.values())).update(rest)
    elif by_pool.get("", {}).keys() <= _WITHOUT_POOL:
        by_pool.pop("", None)  # of which pool, is not said
    # Which model a worker serves is not said. Without one that prefills, they are not apart.
    roles = workers if len(by_pool) == 1 and PREFILL in workers.values() else {}
    return tuple(
        PoolReading(
            pool,
            _signals(readings),
            frozenset(pods.get(pool, ())),
            by_load=_DYNAMO.isdisjoint(readings),
            roles={worker: role for worker, role in roles.items() if worker and role in ROLE_CODES},
            queues=queues if roles else {},
        )
        for pool, readings in sorted(by_pool.items())
    )


_POOL_LABELS: Final = {name: row.pool_label for row in _ALL for name in row.names}
_WHERE: Final = {name: row.where for row in _ALL if row.where is not None for name in row.names}
_WITHOUT_POOL: Final = frozenset(name for name, label in _POOL_LABELS.items() if not label)
_DYNAMO: Final = frozenset(name for row in DYNAMO for name in row.names)
_QUEUES: Final = frozenset(name for row in DYNAMO if row.signal == "queue_requests" for name in row.names)


def _counts(name: str, labels: Mapping[str, str]) -> bool:
    """Return whether a series is one of those that its row counts."""
    label, values = _WHERE.get(name, ("", frozenset()))
    return not label or labels.get(label) in values


def pod_of_member(name: str, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield the pod of a series of `MEMBERS`, if it has one."""
    pod = next((labels[label] for label in MEMBERS.get(name, ()) if labels.get(label)), "")
    if pod:
        yield _RANK.sub("", pod)


def _signals(readings: dict[str, list[float]]) -> dict[str, float]:
    chosen = ((row, next((readings[name] for name in row.names if name in readings), None)) for row in _ALL)
    merged = {row.signal: float(row.merge(values)) for row, values in chosen if values is not None}
    return {signal: value for signal, value in merged.items() if value <= LARGEST_VALUE}


def worker_of(series: Iterable[Series]) -> str:
    """Return the id that a gateway has for the server of this page; "" where there is none, or several."""
    workers = {dict(sample.labels).get("worker_id", "") for sample in series if sample.name == WORKER}
    return str(int(worker, 16)) if len(workers) == 1 and _WORKER.fullmatch(worker := workers.pop()) else ""


def known_gateway(series: Sequence[Series]) -> str:
    """Return whose scrape it is that has these series, where it is a gateway's that no engine's can be; else ""."""
    return next((OTHERS[sample.name] for sample in series if sample.name in OTHERS), "")
