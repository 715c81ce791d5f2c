"""Samples live engines in this process, with the exporter's own sources and pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import click

from kvpressure import logs
from kvpressure.cli.access import REFUSED_SECONDS, Access, access_of, split_engine_url
from kvpressure.cli.console import progress
from kvpressure.cli.findings import SampledTarget
from kvpressure.config.settings.polling import KvEventsSettings
from kvpressure.config.target import ALL_GPUS, Target
from kvpressure.config.thresholds import Thresholds
from kvpressure.daemon.feeds import Feeds
from kvpressure.daemon.node_sources import settings_model
from kvpressure.engine_state import PipelineSettings
from kvpressure.engines.targets import Changes
from kvpressure.model.catalogue import NOT_KNOWN
from kvpressure.model.environment import Environment
from kvpressure.model.errors import RefusedConnectionError
from kvpressure.model.samples import EnginePage, SourceHealth
from kvpressure.model.view import GpuView
from kvpressure.net.schedule import Clock, SystemClock
from kvpressure.net.urls import target_name
from kvpressure.printable import clean
from kvpressure.sources.gateway import SOURCE as GATEWAYS
from kvpressure.sources.gateway import GatewaySettings
from kvpressure.sources.gpu.process import SOURCE as GPUS
from kvpressure.sources.kv_events import SOURCE as KV_EVENTS
from kvpressure.sources.port_owner import find_owners, port_here
from kvpressure.sources.source import merged

GIVE_UP_SECONDS = 5.0
"""Sampling ends where no engine has answered until then; after REFUSED_SECONDS where all refuse connections."""

SLOW_SECONDS = 1.0
"""An engine whose responses usually take longer is not read once a second."""

STUCK_WITHIN_SECONDS = 45.0
"""By then an engine without progress is diagnosed as stuck."""

REDRAW_SECONDS = 0.25

_NAMED = {GATEWAYS.name: "gateway", KV_EVENTS.name: "KV events of"}


def targets_of(
    urls: Iterable[str], access: Access, *, gpus: bool, kv_events_port: int | None = None
) -> tuple[Target, ...]:
    """Return a target per distinct URL (`host:port`, `http://host:port`, or a page's full address).

    A process on this machine has the limits of its command line, and with `gpus`, where it is the only engine, this
    machine's GPUs. KV events are read at `kv_events_port` of each engine's host. Raises ValueError.
    """
    pages = dict.fromkeys(map(split_engine_url, urls))
    owners = find_owners({port for base, _ in pages if (port := port_here(base)) is not None})
    return tuple(
        Target(
            name=target_name(base, path),
            url=base,
            path=path or "/metrics",
            gpus=(ALL_GPUS,) if gpus and len(pages) == 1 else None,
            tls=access.tls,
            bearer_token_file=access.bearer_token_file,
            basic_auth=access.basic_auth,
            kv_events=None if kv_events_port is None else KvEventsSettings(port=kv_events_port),
            limits=None if (port := port_here(base)) is None else owners[port].limits,
        )
        for base, path in pages
    )


class Sampler:
    """Polls targets, and the gateways in front of them, once a second while its block runs."""

    def __init__(
        self,
        targets: tuple[Target, ...],
        thresholds: Thresholds,
        *,
        gpus: bool = False,
        clock: Clock | None = None,
        settings: PipelineSettings | None = None,
        gateways: GatewaySettings | None = None,
    ) -> None:
        self.targets = targets
        self.clock = clock or SystemClock()
        self._environment = Environment()
        sections: dict[str, Any] = {} if gateways is None else {GATEWAYS.section: gateways}
        node = settings_model()(**sections)
        events = (KV_EVENTS,) if any(target.kv_events is not None for target in targets) else ()
        registered = (*((GPUS,) if gpus else ()), *(() if gateways is None else (GATEWAYS,)), *events)
        judged = settings or PipelineSettings()
        self._feeds = Feeds(node, thresholds, self.clock, registered, pipeline=judged, on_page=self._on_page)

    async def __aenter__(self) -> Sampler:
        self.began = self.clock.monotonic()
        self._feeds.node.start()
        await self._feeds.fleet.apply(Changes(added=self.targets))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._feeds.stop()

    @property
    def seconds(self) -> float:
        """How long it has sampled."""
        return self.clock.monotonic() - self.began

    @property
    def hopeless(self) -> bool:
        """Whether no target has answered for a while, and none has a first poll under way."""
        health = self._feeds.fleet.health()
        limit = REFUSED_SECONDS if all(h.reason == RefusedConnectionError.reason for h in health) else GIVE_UP_SECONDS
        return self.seconds >= limit and all(h.last_success is None and h.errors for h in health)

    @property
    def undecided(self) -> bool:
        """Whether an engine that answers slowly has had too few polls for a verdict."""
        views = self._feeds.pipeline.engine_views(self.clock.wall())
        unknown = {view.key.target for view in views if view.diagnosis and view.diagnosis.cause is NOT_KNOWN}
        return any(h.target in unknown and (h.usual_seconds or 0.0) > SLOW_SECONDS for h in self._feeds.fleet.health())

    @property
    def not_yet_stuck(self) -> bool:
        """Whether an engine without progress may still prove to be stuck, or continue."""
        return self._feeds.pipeline.not_yet_stuck(self.clock.wall())

    def sampled(self) -> list[SampledTarget]:
        """Return every target, in the order given; silent engines with their last state."""
        now = self.clock.wall()
        views = self._feeds.pipeline.engine_views(now) + self._feeds.pipeline.silent_views(now)
        health = {health.target: health for health in self._feeds.fleet.health()}
        return [
            SampledTarget(target, health.get(target.name), [view for view in views if view.key.target == target.name])
            for target in self.targets
        ]

    def gpus(self) -> tuple[GpuView, ...]:
        """Return the GPUs of this machine."""
        return self._feeds.pipeline.gpu_views(self.clock.wall())

    def set_environment(self, environment: Environment) -> None:
        """Diagnose with these facts of pods and logs from now on."""
        self._environment = environment
        self._update_environment()

    def gpu_health(self) -> tuple[SourceHealth, ...]:
        """Return the health of the GPU sources; empty without `gpus`."""
        return self._feeds.node.gpu_health()

    @property
    def problems(self) -> list[str]:
        """The errors of gateways and KV events, a sentence each."""
        down = [health for health in self._feeds.node.health() if health.error and not health.up]
        named = (f"{_NAMED.get(health.source, health.source)} {health.target}: {health.error}" for health in down)
        return [*named, *self._feeds.node.snapshot(self.targets, ()).problems]

    def _update_environment(self) -> None:
        environment = merged((self._environment, self._feeds.node.snapshot(self.targets, ())))
        self._feeds.pipeline.set_environment(self.clock.wall(), environment)

    def _on_page(self, target: Target, page: EnginePage) -> None:
        self._update_environment()
        self._feeds.pipeline.on_page(target, page)
        self._feeds.pipeline.expire(page.t)


async def sample(sampler: Sampler, seconds: float, *, give_up: bool = True) -> None:
    """Wait until the sampler has run for `seconds`, with a bar on a terminal.

    Shorter when nothing answers; up to twice as long while an engine answers too slowly for a verdict, and longer while
    an engine without progress may be stuck or pausing.
    """
    names = ", ".join(clean(target.name) for target in sampler.targets)
    with progress("s") as bar:
        task = bar.add_task(f"sampling {names}", total=seconds)
        while sampler.seconds < seconds and not (give_up and sampler.hopeless):
            bar.update(task, completed=sampler.seconds)
            await asyncio.sleep(min(REDRAW_SECONDS, seconds - sampler.seconds))
        while give_up and sampler.undecided and sampler.seconds < 2 * seconds:
            bar.update(task, description=f"{names}: answers are slow, sampling on", completed=sampler.seconds)
            await asyncio.sleep(REDRAW_SECONDS)
        while give_up and sampler.not_yet_stuck and sampler.seconds < seconds + STUCK_WITHIN_SECONDS:
            bar.update(task, description=f"{names}: nothing moves, sampling on", completed=sampler.seconds)
            await asyncio.sleep(REDRAW_SECONDS)


def targets_named(urls: tuple[str, ...], options: dict[str, Any], *, gpus: bool = False) -> tuple[Target, ...]:
    """Return the targets named on the command line. Raises click.BadParameter for an invalid URL."""
    try:
        targets = targets_of(urls, access_of(options), gpus=gpus, kv_events_port=options["kv_events_port"])
    except ValueError as error:
        raise click.BadParameter(f"{error}", param_hint="ADDRESS") from error
    logs.configure("error", "logfmt")
    return targets
