"""Queues of gateways in a Prometheus, attributed to the engines behind them as a running exporter does.

A gateway's thresholds are in none of its series: its defaults are assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kvpressure.model.environment import GatewayReport
from kvpressure.model.record import record
from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.names import REPLICA_LABELS, Target, one_of, quoted
from kvpressure.prometheus.paging import DAY_SECONDS, Span, pages, ranged
from kvpressure.runtimes.gateways import (
    DYNAMO,
    KV_CACHE_UTIL_THRESHOLD,
    MEMBERS,
    QUEUE_DEPTH_THRESHOLD,
    ROWS,
    GatewayRow,
    pod_of_member,
)
from kvpressure.runtimes.table import LARGEST_VALUE

STEP_SECONDS: Final = 15.0
PAGE_SECONDS: Final = 21_600.0
"""Of one query about a pool; six hours are 1,440 values of a signal."""
WAITED_SECONDS: Final = 120.0
"""The queue time is that of requests that left the queue in so long: four scrapes at the longest usual interval."""
MAX_POOLS: Final = 256
"""More than that in one Prometheus are not pools of engines."""

OF_EPP: Final = next(row for row in ROWS if row.signal == "queue_requests")
OF_DYNAMO: Final = next(row for row in DYNAMO if row.signal == "queue_requests")
_QUEUES: Final = (*OF_EPP.names, *OF_DYNAMO.names)


@record
class Pool:
    """A pool of engines behind a gateway: the labels of the gateway's target, and the name of the pool, "" without one.

    `pods` are those that the gateway listed, `engine_count` the number of targets that are assumed to be behind it.
    """

    cluster: str
    namespace: str
    job: str
    name: str
    by_load: bool
    pods: frozenset[str] = frozenset()
    engine_count: int = 0

    @property
    def title(self) -> str:
        """The name in reports."""
        return "/".join(filter(None, (self.cluster, self.namespace, self.name or self.job or "unnamed")))

    def expr(self, row: GatewayRow, over: str = "{}") -> str:
        """Return the expression of a signal: series of the first spelling that exists, each replica's counted once.

        `over` is applied to each series, such as `rate({}[1m])`.
        """
        own = {"cluster": self.cluster, "namespace": self.namespace, "job": self.job}
        if row.pool_label and (self.name or row.pool_label != "name"):
            own[row.pool_label] = self.name
        matchers = ", ".join(f"{label}={quoted(value)}" for label, value in own.items() if value or label not in _OWN)
        if row.where is not None:
            label, values = row.where
            matchers += f", {label}=~{quoted('|'.join(sorted(values)))}"
        part = f"{row.merge.__name__}(max without ({', '.join(REPLICA_LABELS)}) ({over}))"
        return " or ".join(part.format(f"{name}{{{matchers}}}") for name in row.names)


_OWN: Final = ("cluster", "namespace", "job")


def pools_there(server: Prometheus, span: Span) -> list[Pool]:
    """Return the pools whose gateway reported a queue in that time. Raises PrometheusError."""
    pools: dict[tuple[str, str, str], Pool] = {}
    for labels in server.series([f"{{{one_of(_QUEUES)}}}"], span.start, span.end):
        if (name := labels.get("__name__")) not in _QUEUES:
            continue  # not what was queried
        by_load = name not in OF_DYNAMO.names
        row = OF_EPP if by_load else OF_DYNAMO
        where = (labels.get("cluster", ""), labels.get("namespace", ""))
        pool = Pool(*where, labels.get("job", ""), labels.get(row.pool_label, ""), by_load)
        # Where two jobs scrape one pool, one of them is enough.
        known = pools.setdefault((*where, pool.name), pool)
        if pool.job < known.job:
            pools[*where, pool.name] = pool
    if not pools:
        return []
    pods: dict[tuple[str, str, str], set[str]] = {}
    for labels in server.series([f"{{{one_of(MEMBERS)}}}"], span.start, span.end):
        key = (labels.get("cluster", ""), labels.get("namespace", ""), labels.get("name", ""))
        pods.setdefault(key, set()).update(pod_of_member(labels.get("__name__", ""), labels))
    kept = list(pools.items())[:MAX_POOLS]
    return [replace(pool, pods=frozenset(pods.get(key, ()))) for key, pool in sorted(kept)]


def behind(pools: Sequence[Pool], targets: Iterable[Target]) -> dict[Target, Pool]:
    """Return the pool of each target that is behind a gateway: that which lists its pod, else the only one there is."""
    pool_of: dict[Target, Pool] = {}
    for target in targets:
        near = [pool for pool in pools if _may_have(pool, target)]
        listed = [pool for pool in near if target.pod and target.pod in pool.pods]
        alone = [pool for pool in near if not (pool.pods and target.pod)] if len(near) == 1 else []
        if candidates := listed or alone:
            pool_of[target] = candidates[0]
    counts = {pool: sum(own is pool for own in pool_of.values()) for pool in pool_of.values()}
    return {target: replace(pool, engine_count=counts[pool]) for target, pool in pool_of.items()}


def _may_have(pool: Pool, target: Target) -> bool:
    """Return whether a target is in the gateway's cluster and namespace, as far as both have one."""
    pairs = ((pool.cluster, target.get("cluster")), (pool.namespace, target.namespace))
    return all(not name or not other or name == other for name, other in pairs)


class Queue:
    """The reports of one pool's gateway, read some hours at a time."""

    def __init__(self, server: Prometheus, pool: Pool, target: str) -> None:
        self._server = server
        self._pool = pool
        self._target = target
        self._page = Span(0.0, 0.0)
        self._values: Mapping[str, Mapping[int, float]] = {}

    def at(self, t: float) -> tuple[GatewayReport, ...]:
        """Return the report at a moment; none where it reported no queue then. Raises PrometheusError."""
        if not self._page.start <= t < self._page.end:
            self._page = Span(t, t + PAGE_SECONDS)
            self._values = {signal: self._query(expr) for signal, expr in self._exprs().items()}
        step = round((t - self._page.start) / STEP_SECONDS)
        now = {signal: values[step] for signal, values in self._values.items() if step in values}
        if "queue_requests" not in now:
            return ()
        pool, ready = self._pool, now.get("ready_engines", 0.0)
        report = GatewayReport(
            name=pool.title,
            pool=pool.name,
            t=t,
            engines=frozenset({self._target}),
            kv_usage_max_ratio=KV_CACHE_UTIL_THRESHOLD if pool.by_load else None,
            engine_queue_max_requests=QUEUE_DEPTH_THRESHOLD if pool.by_load else 1.0,
            queue_requests=now["queue_requests"],
            queue_seconds=now.get("queue_seconds"),
            refused_per_second=now.get("refused_per_second"),
            failed_per_second=now.get("failed_per_second"),
            kv_usage_ratio=now.get("kv_usage_ratio"),
            engine_queue_requests=now.get("engine_queue_requests"),
            stale_engines=now.get("stale_engines"),
            engine_count=max(1.0, ready or pool.engine_count),
        )
        return (report,)

    def _exprs(self) -> dict[str, str]:
        rows = {row.signal: row for row in (ROWS if self._pool.by_load else DYNAMO)}
        gauges = rows.keys() - {"waited_seconds", "waited_requests", "refused_requests", "failed_requests"}
        exprs = {signal: self._pool.expr(rows[signal]) for signal in sorted(gauges)}
        if self._pool.by_load:
            parts = (
                self._pool.expr(rows[f"waited_{what}"], f"increase({{}}[{WAITED_SECONDS:.0f}s])")
                for what in ("seconds", "requests")
            )
            exprs["queue_seconds"] = "({}) / (({}) >= 1)".format(*parts)
        else:
            over = f"rate({{}}[{WAITED_SECONDS:.0f}s])"
            for what in ("refused", "failed"):
                exprs[f"{what}_per_second"] = self._pool.expr(rows[f"{what}_requests"], over)
        return exprs

    def _query(self, expr: str) -> dict[int, float]:
        values: dict[int, float] = {}
        for page in pages(self._page, STEP_SECONDS, DAY_SECONDS):
            for row in ranged(self._server, expr, page, STEP_SECONDS):
                usable = ((t, value) for t, value in row["values"] if 0 <= value <= LARGEST_VALUE)
                values.update((round((t - self._page.start) / STEP_SECONDS), value) for t, value in usable)
        return values
