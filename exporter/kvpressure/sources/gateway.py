"""Reads gateways that hold requests back in front of a pool of engines (`gateways.targets`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final

from yarl import URL

from kvpressure.config.settings.polling import ClientSettings
from kvpressure.config.settings.section import Section, Within, derived
from kvpressure.config.settings.types import BaseUrl, HttpPath, Label, TargetName
from kvpressure.config.target import Target
from kvpressure.model.environment import Environment, GatewayReport
from kvpressure.model.errors import NotMetricsError, SourceError, TooLargeError
from kvpressure.model.samples import SourceHealth
from kvpressure.net.budget import BUDGET
from kvpressure.net.guard import Guard
from kvpressure.net.schedule import Clock, SystemClock
from kvpressure.net.urls import default_name
from kvpressure.promtext.lines import Series
from kvpressure.runtimes.gateways import (
    KV_CACHE_UTIL_THRESHOLD,
    NAMES,
    QUEUE_DEPTH_THRESHOLD,
    PoolReading,
    pools_of,
)
from kvpressure.sources.metrics_page import MetricsPage
from kvpressure.sources.source import Known, Registration, Source

NAME: Final = "gateway"
INTERVAL_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 5.0
COUNTED_OVER_SECONDS: Final = 60.0
"""Requests that left the queue in that time show how long it takes."""
_NOT_SERVED: Final = ("refused_requests", "failed_requests")
_COUNTERS: Final = ("waited_seconds", "waited_requests", *_NOT_SERVED)
MAX_POOLS: Final = 64
"""An endpoint picker serves one; of more than these, nothing is a pool."""


class NoPoolError(SourceError, reason="no_pool"):
    """The page has no metric of the pool that is set."""


class SeveralPoolsError(SourceError, reason="several_pools"):
    """The page has several pools, and none is set."""


class GatewayTargetSettings(ClientSettings):
    """One gateway's metrics endpoint, and which engines are behind it."""

    url: BaseUrl
    """Address of its metrics, such as `http://llama-epp:9090`: an endpoint picker or Dynamo's frontend."""
    path: HttpPath = "/metrics"
    """Path of the metrics."""
    name: TargetName = derived("the URL's host:port", lambda target: default_name(target.url))
    """Name of the gateway."""
    pool: Label = ""
    """Name of its InferencePool; required if its metrics cover several pools."""
    engines: tuple[Label, ...] = ()
    """The engines of the pool: names of targets or of pods, `*` and `?` stand for any characters. Unset: the pods that
    the gateway lists, and all engines without a pod if there is only one pool."""
    namespace: Label = ""
    """Only engines of that Kubernetes namespace."""
    kv_cache_util_threshold: Annotated[float, Within(0, 1, above=True)] = KV_CACHE_UTIL_THRESHOLD
    """Its saturation detector's `kvCacheUtilThreshold`."""
    queue_depth_threshold: Annotated[float, Within(0, 1e6, above=True)] = QUEUE_DEPTH_THRESHOLD
    """Its saturation detector's `queueDepthThreshold`."""


class GatewaySettings(Section):
    """Gateways in front of engines, whose queue counts as the engines' demand."""

    targets: tuple[GatewayTargetSettings, ...] = ()
    """Gateways at fixed addresses."""


class GatewaySource(Source):
    """One gateway, polled like an engine; what it reported is known until its next reading, or until that fails."""

    def __init__(self, target: GatewayTargetSettings, clock: Clock | None, pools: int) -> None:
        self._target = target
        self._several = pools > 1
        share = BUDGET.share(NAME)
        url = URL(target.url + target.path)
        self._page = MetricsPage(url, target, NAMES, self._chosen, share, clock or SystemClock())
        self._guard = Guard[None](
            NAME,
            target.name,
            interval_seconds=INTERVAL_SECONDS,
            deadline_seconds=TIMEOUT_SECONDS + 1.0,
            clock=clock,
            share=share,
        )
        self._counted: deque[tuple[float, Mapping[str, float]]] = deque()
        """The counters of each reading of the last minute, since the gateway started."""
        self._reading: tuple[float, PoolReading] | None = None

    async def run(self) -> None:
        """Read at every interval until cancelled."""
        try:
            await self._guard.run(self._read)
        finally:
            await self._page.aclose()

    def health(self) -> tuple[SourceHealth, ...]:
        """Return one record."""
        return (self._guard.health(),)

    def facts(self, known: Known) -> Environment:
        """Return what it reported last, for the engines among those that are known now."""
        if self._reading is None or not self._guard.up:
            return Environment()
        t, reading = self._reading
        engines = frozenset(target.name for target in known.targets if self._has(target, reading.pods))
        if self._several and not (self._target.engines or self._target.namespace or reading.pods):
            problem = f"gateway {self._target.name}: several are read, and it is not said which engines are behind it"
            return Environment(problems=(f"{problem}; set its engines or namespace",))
        problems: tuple[str, ...] = ()
        if known.targets and not engines:
            problems = (f"gateway {self._target.name}: no target is one of its engines; check its engines, namespace",)
        return Environment(reports=(self._report(t, reading, engines),), problems=problems)

    def _report(self, t: float, reading: PoolReading, engines: frozenset[str]) -> GatewayReport:
        signals, target = reading.signals, self._target
        return GatewayReport(
            name=target.name,
            pool=reading.pool,
            t=t,
            engines=engines,
            kv_usage_max_ratio=target.kv_cache_util_threshold if reading.by_load else None,
            # Who waits in an engine of Dynamo's has prompt tokens to compute yet, which is what its router looks at.
            engine_queue_max_requests=target.queue_depth_threshold if reading.by_load else 1.0,
            queue_requests=signals.get("queue_requests"),
            queue_seconds=self._queue_seconds(),
            refused_per_second=self._per_second("refused_requests"),
            failed_per_second=self._per_second("failed_requests"),
            kv_usage_ratio=signals.get("kv_usage_ratio"),
            engine_queue_requests=signals.get("engine_queue_requests"),
            stale_engines=signals.get("stale_engines"),
            roles=reading.roles,
            role_queues=reading.queues,
        )

    def _has(self, target: Target, pods: frozenset[str]) -> bool:
        """Return whether an engine is behind the gateway, which may list its `pods`."""
        if self._target.namespace and self._target.namespace != target.namespace:
            return False
        if pods and not self._target.engines and (target.pod or self._several):
            return target.pod in pods
        names = [name for name in (target.name, target.pod) if name]
        patterns = [engine.replace("[", "[[]") for engine in self._target.engines]  # IPv6 addresses have brackets
        return not patterns or any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    async def _read(self) -> None:
        t, reading = await self._page.read(TIMEOUT_SECONDS)
        self._reading = t, reading
        self._count(t, reading)

    def _chosen(self, series: Sequence[Series], values: Sequence[float], _: float) -> PoolReading:
        """Return the pool that is meant. Raises SourceError where there is none, or it is not clear which."""
        pools = pools_of(series, values)
        if not pools:
            raise NotMetricsError("no metric of a gateway that queues; is this its metrics port?")
        if self._target.pool:
            reading = next((pool for pool in pools if pool.pool == self._target.pool), None)
            if reading is None:
                raise NoPoolError(f"no metric of the pool {self._target.pool}")
            return reading
        if len(pools) > MAX_POOLS:
            raise TooLargeError(f"metrics of {len(pools)} pools")
        if len(pools) > 1:
            raise SeveralPoolsError(f"metrics of {len(pools)} pools: set which one is meant")
        return pools[0]

    def _count(self, t: float, reading: PoolReading) -> None:
        # Dynamo's frontend has no series of what it refused before the first; of others no such series is known.
        none = {} if reading.by_load else dict.fromkeys(_NOT_SERVED, 0.0)
        counts = none | {signal: reading.signals[signal] for signal in _COUNTERS if signal in reading.signals}
        before = self._counted[-1][1] if self._counted else counts
        if counts.keys() != before.keys() or any(counts[signal] < before[signal] for signal in counts):
            self._counted.clear()
        self._counted.append((t, counts))
        while self._counted[0][0] < t - COUNTED_OVER_SECONDS:
            self._counted.popleft()

    def _growth(self, signal: str) -> float | None:
        """Return by how much a counter has grown in the last minute."""
        if not self._counted or signal not in self._counted[-1][1]:
            return None
        return self._counted[-1][1][signal] - self._counted[0][1][signal]

    def _per_second(self, signal: str) -> float | None:
        growth = self._growth(signal)
        seconds = self._counted[-1][0] - self._counted[0][0] if self._counted else 0.0
        return growth / seconds if growth is not None and seconds > 0 else None

    def _queue_seconds(self) -> float | None:
        requests, seconds = self._growth("waited_requests"), self._growth("waited_seconds")
        return max(0.0, seconds) / requests if seconds is not None and requests is not None and requests >= 1 else None


def _made(settings: GatewaySettings, clock: Clock) -> Sequence[Source]:
    pools = len({(target.namespace, target.pool or target.name) for target in settings.targets})
    return [GatewaySource(target, clock, pools) for target in settings.targets]


SOURCE: Final = Registration[GatewaySettings](
    NAME,
    lambda settings, wiring: _made(settings, wiring.clock),
    {NAME: "queues of gateways"},
    section="gateways",
    settings=GatewaySettings,
)
