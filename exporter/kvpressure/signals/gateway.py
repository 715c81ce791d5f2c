"""The queue in front: requests that a gateway holds back so that they do not wait in the engine are its demand too.

Each engine of a pool is given an equal share of them, as requests that wait for a place in the batch: every signal that
counts waiting requests counts them. An engine that runs nothing is given none, for it is not what they wait for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kvpressure.config.target import Target
from kvpressure.model.environment import EngineReport, GatewayReport
from kvpressure.model.family import engine_family
from kvpressure.model.record import record
from kvpressure.model.samples import EngineSample
from kvpressure.model.values import Derived, known
from kvpressure.signals.context import Context
from kvpressure.signals.optional import OptionalGroup
from kvpressure.signals.points import Point, mean, values
from kvpressure.signals.windows import EngineWindow

IN_ENGINE: Final = "waiting_in_engine"
"""Requests that wait in the engine itself; there wherever a gateway reports, whose share `waiting` counts too."""
_SHARE: Final = "gateway_share"
_KINDS: Final = ("waiting_capacity", "waiting_deferred", "fetching")
_POOL: Final = "gateway_queue"
_SECONDS: Final = "gateway_queue_seconds"
_KV: Final = "gateway_kv_ratio"
_QUEUE: Final = "gateway_engine_queue_ratio"
_STALE: Final = "gateway_stale_engines"
_REFUSED: Final = "gateway_refused_per_second"
_FAILED: Final = "gateway_failed_per_second"

FAMILIES: Final = (
    engine_family(
        "gateway_queue_requests",
        "Requests queued by gateways in front of the engine: its share of its pool's queue, mean over the window. "
        "They count as requests_waiting too while the engine runs requests. Absent without a gateway that queues "
        "requests.",
    ),
    engine_family(
        "gateway_queue_seconds",
        "Mean queue time at the gateway of the requests that left its queue in the last minute; absent if none did.",
    ),
)


@record
class GatewayQueue:
    """What the gateways in front of an engine hold back, over some polls; None where none reports a queue.

    `requests` are those of the whole pool and `seconds` how long those that left were there; `held_polls_ratio` is the
    share of polls with any, `in_engine_ratio` of those, or with any refused, in which requests wait in the engine too.
    `kv_ratio` and `engine_queue_ratio` are the use of the cache and the queue of the pool's engines over what the
    gateway lets them come to, in the polls with any. `stale_engines` are engines of the pool whose metrics the gateway
    cannot read, mean over the polls with any: to it they are full, and what it says of them is of some time ago.
    `refused_per_second` are requests that it refuses, the engine's share of them, mean over the polls.
    """

    requests: float | None = None
    seconds: float | None = None
    held_polls_ratio: float | None = None
    in_engine_ratio: float | None = None
    kv_ratio: float | None = None
    engine_queue_ratio: float | None = None
    stale_engines: float = 0.0
    refused_per_second: float = 0.0


def with_gateways(
    sample: EngineSample, target: Target, ranks: int, reports: Sequence[EngineReport]
) -> tuple[EngineSample, float | None]:
    """Return a sample with its share of what gateways hold back and its role, and the share of the pool kept free.

    `ranks` is how many engines the target has. The share of the pool is None where no gateway holds requests back.
    """
    gateways = [report for report in reports if isinstance(report, GatewayReport) and target.name in report.engines]
    if roles := [report.roles[sample.worker] for report in gateways if sample.worker in report.roles]:
        sample = replace(sample, role=sample.role or roles[0])
    queues = [_of_role(report, sample.role) for report in gateways if report.queue_requests is not None]
    if refused := sum((report.refused_per_second or 0.0) / _engines_of(report) for report in gateways):
        sample = replace(sample, gauges={**sample.gauges, _REFUSED: refused / ranks})
    if failed := sum((report.failed_per_second or 0.0) / _engines_of(report) for report in gateways):
        sample = replace(sample, gauges={**sample.gauges, _FAILED: failed / ranks})
    if not queues:
        return sample, None
    queue = sum(report.queue_requests or 0.0 for report in queues)
    share = sum((report.queue_requests or 0.0) / _engines_of(report) for report in queues) / ranks
    busiest = max(queues, key=lambda report: report.queue_requests or 0.0)
    usage, most = busiest.kv_usage_ratio, busiest.kv_usage_max_ratio
    usage = sample.gauges.get("kv_usage") if usage is None or busiest.stale_engines else usage
    depth = busiest.engine_queue_requests
    depth = sample.gauges.get("waiting") if depth is None or busiest.stale_engines else depth
    taken = share if sample.gauges.get("running") else 0.0
    more = {
        IN_ENGINE: sample.gauges.get("waiting"),
        _SHARE: share,
        _POOL: queue,
        _SECONDS: busiest.queue_seconds,
        _KV: None if usage is None or most is None else usage / most,
        _QUEUE: None if depth is None else depth / busiest.engine_queue_max_requests,
        _STALE: busiest.stale_engines,
    }
    # Requests that wait in the engines may have all of the caches.
    by_queue = (more[_QUEUE] or 0.0) > (math.inf if more[_KV] is None else more[_KV])
    kept = None if most is None or not queue or by_queue else 1.0 - most
    return replace(
        sample,
        gauges=_waiting(sample.gauges, taken) | {name: value for name, value in more.items() if value is not None},
    ), kept


def _engines_of(report: GatewayReport) -> float:
    """Return how many engines are behind the gateway."""
    return report.engine_count or len(report.engines)


def _of_role(report: GatewayReport, role: str) -> GatewayReport:
    """Return the report with what waits for engines of that role alone, where the gateway counts them by role."""
    if role not in report.role_queues:
        return report
    many = sum(other == role for other in report.roles.values())
    return replace(report, queue_requests=report.role_queues[role], engine_count=many or report.engine_count)


def _waiting(gauges: Mapping[str, float], share: float) -> dict[str, float]:
    """Return the gauges with `share` more requests waiting: for what those in the engine wait for, if any do."""
    own = gauges.get("waiting", 0.0)
    parts = {name: gauges[name] / own for name in _KINDS if name in gauges} if own else {"waiting_capacity": 1.0}
    return {name: value + share * {"waiting": 1.0, **parts}.get(name, 0.0) for name, value in gauges.items()}


def gateway_queue(points: Sequence[Point]) -> GatewayQueue | None:
    """Return what the polls show; None where no gateway reports a queue now, or refuses requests."""
    refused = mean(values(points, _REFUSED) or [0.0])
    limited = [point for point in points if point.gauges.get(_POOL, 0.0) >= 1 or point.gauges.get(_REFUSED)]
    waits = [point for point in limited if point.gauges.get(IN_ENGINE, point.gauges.get("waiting", 0.0)) >= 1]
    in_engine = len(waits) / len(points)
    if _POOL not in points[-1].gauges:
        return GatewayQueue(in_engine_ratio=in_engine, refused_per_second=refused) if refused else None
    queues = values(points, _POOL)
    held = [point for point in points if point.gauges.get(_POOL, 0.0) >= 1]
    seconds = values(points, _SECONDS)
    kv = values(held, _KV)
    depth = values(held, _QUEUE)
    return GatewayQueue(
        requests=mean(queues),
        seconds=seconds[-1] if seconds else None,
        held_polls_ratio=len(held) / len(points),
        in_engine_ratio=in_engine,
        kv_ratio=mean(kv) if kv else None,
        engine_queue_ratio=mean(depth) if depth else None,
        stale_engines=mean(stale) if (stale := values(held, _STALE)) else 0.0,
        refused_per_second=refused,
    )


def derive(window: EngineWindow, _: Context) -> Derived:
    """Return `gateway_queue_requests` and `gateway_queue_seconds`."""
    newest = window.points[-1].gauges if window.points else {}
    share = window.points.mean(_SHARE) if _SHARE in newest else None
    return known({"gateway_queue_requests": share, "gateway_queue_seconds": newest.get(_SECONDS)})


OPTIONAL: Final = OptionalGroup("gateway", with_gateways, gateway_queue, GatewayQueue(), derive)
