"""A workload: replicas (ranks among them) of one model, namespace, workload and role, side by side. PURE.

Whether they are uneven is what rules/recording/uneven.yaml.j2 records, and how many replicas would serve all demand
what rules/recording/replicas.yaml.j2 does; tests give both the same engines.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.record import record
from kvpressure.model.values import Derived, at
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView, cause_of, role_of

POD_OF_WORKLOAD: Final = r"(.+?)(-[a-z0-9]{6,10})?-([a-z0-9]{5}|[0-9]+)"
"""A pod's name: its workload's, a hash of its template, its own part."""

_SHORT: Final = frozenset({Cause.KV_CACHE_PRESSURE, Cause.CONCURRENCY_BOUND, Cause.COMPUTE_BOUND})
_SPARE: Final = frozenset({Cause.HEALTHY, Cause.IDLE})

ROUTE_BY_LOAD: Final = (
    "Route by load before adding replicas: by free KV cache and waiting requests, neither in turn nor by session"
)


class Workload(NamedTuple):
    """What replicas have in common that are compared; names are "" where there are none."""

    namespace: str
    model_name: str
    name: str
    role: str


@record
class Uneven:
    """Replicas short of something while others have room for a share of `fits_ratio` of what overflows.

    `reason` says what tells the hottest from all that are not short of anything, in parentheses; "" if nothing does.
    """

    hot: tuple[EngineView, ...]
    free: tuple[EngineView, ...]
    fits_ratio: float
    reason: str


def workload_of(view: EngineView) -> Workload:
    """Return the workload of an engine."""
    pod = re.fullmatch(POD_OF_WORKLOAD, view.pod)
    return Workload(view.namespace, view.key.model_name, pod[1] if pod else "", role_of(view.derived))


def demand_of(view: EngineView) -> float | None:
    """Return the demand on an engine in engines like it, of its scarcest constraint; None where that is not known."""
    return max(demands_of(view.derived).values(), default=None)


def demands_of(derived: Derived) -> dict[str, float]:
    """Return the demand on an engine in engines like it by constraint, without those that are not known."""
    demand = derived.get("demand_replicas")
    known = {name: at(derived, "demand_replicas", name) for name in demand} if isinstance(demand, Mapping) else {}
    return {name: value for name, value in known.items() if value is not None}


def demand_replicas(engines: Iterable[tuple[str, Mapping[str, float]]]) -> dict[str, float]:
    """Return demand in replicas by constraint, each used fully; {} where no replica reports any.

    Of each engine its replica (the same for all ranks behind one address) and its demand by constraint are given. Of
    several ranks the one with the highest demand counts. A replica that reports nothing counts as the average of the
    others; one that reports other constraints only has little demand on this one so far.
    """
    replicas: defaultdict[str, list[Mapping[str, float]]] = defaultdict(list)
    for replica, demand in engines:
        replicas[replica].append(demand)
    reporting = [ranks for ranks in replicas.values() if any(ranks)]
    together: defaultdict[str, float] = defaultdict(float)
    for ranks in reporting:
        for constraint in {name for rank in ranks for name in rank}:
            together[constraint] += max(rank.get(constraint, 0.0) for rank in ranks)
    return {constraint: demand * len(replicas) / len(reporting) for constraint, demand in together.items()}


def desired_replicas(demand: Mapping[str, float], thresholds: Thresholds, before: int = 1) -> int | None:
    """Return the replicas to run now for that demand by constraint, never less than 1; None where none is known.

    At most `most_replicas` of those that were requested `before`.
    """
    if not demand:
        return None
    required = max(demand.values()) / thresholds.scaling.target_ratio
    return min(max(1, math.ceil(required)), most_replicas(before, thresholds))


def most_replicas(before: int, thresholds: Thresholds) -> int:
    """Return the most that may be requested `scaling_down_hold_seconds` after `before` were."""
    return max(math.floor(thresholds.scaling.up_max_factor * before), before + int(thresholds.scaling.up_step_count))


def unevenness(views: Sequence[EngineView], thresholds: Thresholds) -> Uneven | None:
    """Return how uneven the replicas of one workload are; None where no room of one would serve another's requests.

    Pools that differ are uneven on purpose.
    """
    present = [view for view in views if view.silence is None]
    pools = [size for view in present if (size := at(view.derived, "kv_capacity_tokens"))]
    if pools and max(pools) > thresholds.alert.uneven_pools_min_factor * min(pools):
        return None
    overflow = {view.key: over for view in present if (over := _overflow(view)) is not None}
    backlog = sum(at(view.derived, "queue_drain_seconds") or 0.0 for view in present if view.key in overflow)
    hot = tuple(view for view in present if view.key in overflow)
    largest = max((share for view in hot if (share := _request_share(view)) is not None), default=1.0)
    rooms = {view.key: room for view in present if (room := _room(view, largest)) is not None}
    if not rooms or backlog < thresholds.alert.uneven_queue_min_seconds:
        return None
    fits = min(1.0, sum(rooms.values()) / sum(overflow.values()))
    free = tuple(view for view in present if view.key in rooms)
    if fits < thresholds.alert.uneven_fits_min_ratio:
        return None
    hottest = max(hot, key=lambda view: overflow[view.key])
    return Uneven(hot, free, fits, _reason(hottest, [view for view in present if view not in hot], thresholds))


def _reason(hottest: EngineView, others: Sequence[EngineView], thresholds: Thresholds) -> str:
    def beside(value: Callable[[EngineView], float | None]) -> tuple[float | None, list[float]]:
        return value(hottest), [known for other in others if (known := value(other)) is not None]

    share, shares = beside(_request_share)
    if share is not None and shares and share >= thresholds.alert.uneven_longer_min_factor * max(shares):
        return " (longer requests)"
    hits, found = beside(lambda view: at(view.derived, "prefix_cache_hit_ratio"))
    if hits is not None and found and hits - max(found) >= thresholds.alert.uneven_hits_min_ratio:
        return " (more prefix hits)"
    speed, speeds = beside(_tokens_per_second)
    running, others_run = beside(lambda view: at(view.derived, "requests_running"))
    if speed is not None and speeds and speed < min(speeds) and (running or 0.0) >= max(others_run, default=0.0):
        return " (a slower replica)"
    return ""


def _tokens_per_second(view: EngineView) -> float | None:
    """Return tokens processed a second, of prompts and answers; None where neither is known."""
    found = [at(view.derived, "tokens_per_second", kind) for kind in ("prompt", "generation")]
    return sum(known for known in found if known is not None) if any(found) else None


def _request_share(view: EngineView) -> float | None:
    """Return the share of the pool that a running request has."""
    usage, running = at(view.derived, "kv_cache_usage_ratio"), at(view.derived, "requests_running")
    return None if usage is None or not running else usage / running


def _overflow(view: EngineView) -> float | None:
    """Return what is demanded of an engine beyond what it has; None unless it is short of it.

    It is at least a request, and at most as much again as it has: a long queue has come together over time.
    """
    demand, share = demand_of(view), _request_share(view)
    if demand is None or share is None or cause_of(view) not in _SHORT:
        return None
    return min(1.0, max(0.0, demand - 1.0)) + share


def _room(view: EngineView, request: float) -> float | None:
    """Return what an engine without a queue has left; None where a `request` of that share does not fit its pool."""
    demand, usage = demand_of(view), at(view.derived, "kv_cache_usage_ratio")
    waiting = at(view.derived, "requests_waiting")
    if demand is None or usage is None or waiting is None or waiting >= 1 or cause_of(view) not in _SPARE:
        return None
    return max(0.0, 1.0 - demand) if 1.0 - usage >= request else None
