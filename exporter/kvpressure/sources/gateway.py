"""Reads gateways that hold requests back in front of a pool of engines (`gateways.targets`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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
from kvpressure.net.credentials import Authorization
from kvpressure.net.guard import Guard
from kvpressure.net.http import HttpClient
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
WAITED_OVER_SECONDS: Final = 60.0
"""Requests that left the queue in that time show how long it takes."""
LARGEST_BODY_BYTES: Final = 4 << 20
"""Latency histograms of dozens of models and tenants."""
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
        self._clock: Clock = clock or SystemClock()
        self._url = URL(target.url + target.path)
        self._client = HttpClient(
            self._clock,
            tls=target.tls,
            authorization=Authorization(target.bearer_token_file, target.basic_auth),
            cap_bytes=LARGEST_BODY_BYTES,
        )
        share = BUDGET.share(NAME)
        self._page = MetricsPage(self._client, self._url, NAMES, self._chosen, share)
        self._guard = Guard[None](
            NAME,
            target.name,
            interval_seconds=INTERVAL_SECONDS,
            deadline_seconds=TIMEOUT_SECONDS + 1.0,
            clock=clock,
            share=share,
        )
        self._waited: deque[tuple[float, float, float]] = deque()
        """Of each reading: when, seconds waited, and requests that had waited, since the gateway started."""
        self._counted: dict[str, deque[tuple[float, float]]] = {
            signal: deque() for signal in ("refused_requests", "failed_requests")
        }
        """Of each reading: when, and how many there had been."""
        self._reading: tuple[float, PoolReading] | None = None

    async def run(self) -> None:
        """Read at every interval until cancelled."""
        try:
            await self._guard.run(self._read)
        finally:
            await self._client.aclose()

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
        self._take_waited(t, reading)
        self._take_counted(t, reading)

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

    def _take_waited(self, t: float, reading: PoolReading) -> None:
        seconds, requests = (reading.signals.get(f"waited_{what}") for what in ("seconds", "requests"))
        if seconds is None or requests is None or (self._waited and requests < self._waited[-1][2]):
            self._waited.clear()
        if seconds is not None and requests is not None:
            self._waited.append((t, seconds, requests))
        while self._waited and self._waited[0][0] < t - WAITED_OVER_SECONDS:
            self._waited.popleft()

    def _take_counted(self, t: float, reading: PoolReading) -> None:
        # Dynamo's frontend has no such series before the first; of others no such series is known.
        for signal, counts in self._counted.items():
            count = reading.signals.get(signal, 0.0)
            if counts and count < counts[-1][1]:
                counts.clear()
            if not reading.by_load:
                counts.append((t, count))
            while counts and counts[0][0] < t - WAITED_OVER_SECONDS:
                counts.popleft()

    def _per_second(self, signal: str) -> float | None:
        counts = self._counted[signal]
        if len(counts) < 2:
            return None
        (first, before), (last, now) = counts[0], counts[-1]
        return (now - before) / (last - first) if last > first else None

    def _queue_seconds(self) -> float | None:
        if not self._waited:
            return None
        (_, seconds, requests), (_, seconds_now, requests_now) = self._waited[0], self._waited[-1]
        many = requests_now - requests
        return max(0.0, seconds_now - seconds) / many if many >= 1 else None


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
