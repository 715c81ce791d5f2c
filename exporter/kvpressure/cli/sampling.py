"""Samples live engines in this process, through the same sources and pipeline as the exporter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from kvpressure.cli.access import Access
from kvpressure.cli.engine_address import split_engine_url
from kvpressure.config.settings import Settings
from kvpressure.config.settings.types import default_name
from kvpressure.config.target import ALL_GPUS, Target
from kvpressure.config.thresholds import Thresholds
from kvpressure.daemon.node_sources import NodeSources
from kvpressure.daemon.pollers import EngineFleet
from kvpressure.engine_state.registry import Pipeline, PipelineSettings
from kvpressure.engines.targets import Changes
from kvpressure.model.catalogue import NOT_KNOWN
from kvpressure.model.environment import Environment
from kvpressure.model.samples import EnginePage, GpuReport, SourceHealth
from kvpressure.model.view import EngineView, GpuView
from kvpressure.net.schedule import Clock, SystemClock
from kvpressure.sources.gpu.source import SOURCE as GPUS
from kvpressure.sources.port_owner import find_owners, port_here

GIVE_UP_SECONDS = 5.0
"""Sampling ends early when by then no engine has answered once."""


SLOW_SECONDS = 1.0
"""An engine whose answers usually take longer is not read once a second."""


def targets_of(urls: Iterable[str], access: Access, *, gpus: bool) -> tuple[Target, ...]:
    """One target per distinct URL (`host:port`, `http://host:port`, or a page's full address).

    The limits of a process of this machine are those of its command line. With `gpus`, this machine's GPUs count as the
    engine's where there is only one. Raises ValueError.
    """
    pages = dict.fromkeys(map(split_engine_url, urls))
    owners = find_owners({port for base, _ in pages if (port := port_here(base)) is not None})
    return tuple(
        Target(
            name=default_name(base) + (path if path and path != "/metrics" else ""),
            url=base,
            path=path or "/metrics",
            gpus=(ALL_GPUS,) if gpus and len(pages) == 1 else None,
            tls=access.tls(),
            bearer_token_file=access.bearer_token_file,
            limits=None if (port := port_here(base)) is None else owners[port].limits,
        )
        for base, path in pages
    )


@dataclass(slots=True)
class Seen:
    """What was seen of one target: its engines with their cache configurations, and how the source is doing."""

    target: Target
    health: SourceHealth | None = None
    engines: list[EngineView] = field(default_factory=list)


def engines_of(all_seen: Sequence[Seen]) -> list[EngineView]:
    """Return every engine of every target."""
    return [view for seen in all_seen for view in seen.engines]


class Sampler:
    """Polls targets once a second while its block runs."""

    def __init__(
        self,
        targets: tuple[Target, ...],
        thresholds: Thresholds,
        *,
        gpus: bool = False,
        clock: Clock | None = None,
        settings: PipelineSettings | None = None,
    ) -> None:
        self.targets = targets
        self.clock = clock or SystemClock()
        self._gpus_wanted = gpus
        self._pipeline = Pipeline(settings or PipelineSettings(), thresholds)
        self._fleet = EngineFleet(Settings(), self.clock, self._on_page)
        self._gpus: NodeSources | None = None

    async def __aenter__(self) -> Sampler:
        self.began = self.clock.monotonic()
        if self._gpus_wanted:
            self._gpus = NodeSources(Settings(), self.clock, self._on_gpus, (GPUS,))
            self._gpus.start()
        await self._fleet.apply(Changes(added=self.targets))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._fleet.stop()
        if self._gpus is not None:
            await self._gpus.stop()

    @property
    def seconds(self) -> float:
        """How long it has been sampling."""
        return self.clock.monotonic() - self.began

    @property
    def hopeless(self) -> bool:
        """True when nothing answered for a while; a first answer that is still awaited may come."""
        health = self._fleet.health()
        return self.seconds >= GIVE_UP_SECONDS and all(h.last_success is None and h.errors for h in health)

    @property
    def undecided(self) -> bool:
        """True while an engine that answers slowly has given too few pages for a first verdict."""
        views = self._pipeline.engine_views(self.clock.wall())
        unknown = {view.key.target for view in views if view.diagnosis and view.diagnosis.cause is NOT_KNOWN}
        return any(one.target in unknown and (one.usual_seconds or 0.0) > SLOW_SECONDS for one in self._fleet.health())

    @property
    def not_yet_stuck(self) -> bool:
        """True while an engine gets nowhere that may still turn out to be stuck, or go on."""
        return self._pipeline.not_yet_stuck(self.clock.wall())

    def seen(self) -> list[Seen]:
        """Every target, in the order given; of engines that stopped answering what was seen before."""
        now = self.clock.wall()
        views = self._pipeline.engine_views(now) + self._pipeline.silent_views(now)
        health = {one.target: one for one in self._fleet.health()}
        return [
            Seen(target, health.get(target.name), [view for view in views if view.key.target == target.name])
            for target in self.targets
        ]

    def gpus(self) -> tuple[GpuView, ...]:
        """Return the GPUs of this machine."""
        return self._pipeline.gpu_views(self.clock.wall())

    def tell(self, around: Environment) -> None:
        """Judge with what pods and logs tell from now on."""
        self._pipeline.set_environment(self.clock.wall(), around)

    def gpu_health(self) -> tuple[SourceHealth, ...]:
        """How reading the GPUs goes; empty without `gpus`."""
        return () if self._gpus is None else self._gpus.gpu_health()

    def _on_page(self, target: Target, page: EnginePage) -> None:
        self._pipeline.on_page(target, page)
        self._pipeline.expire(page.t)

    def _on_gpus(self, source: str, report: GpuReport) -> None:
        self._pipeline.on_gpus(source, report)
