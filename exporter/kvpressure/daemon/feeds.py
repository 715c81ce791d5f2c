"""Everything that samples, wired to one pipeline: of the exporter, and of commands that sample engines themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvpressure.config.settings import GpuSettings, Settings
from kvpressure.config.target import Target
from kvpressure.config.thresholds import Thresholds
from kvpressure.daemon.node_sources import SOURCES, NodeSources
from kvpressure.daemon.pollers import EngineFleet
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.model.incident import Price
from kvpressure.model.samples import EnginePage, GpuReport
from kvpressure.net.schedule import Clock
from kvpressure.sources.source import Registration


class Feeds:
    """The pollers of engines (`fleet`), the other sources (`node`), and the `pipeline` that gets what they sample."""

    def __init__(
        self,
        settings: Settings,
        thresholds: Thresholds,
        clock: Clock,
        registered: Sequence[Registration[Any]] = SOURCES,
        *,
        pipeline: PipelineSettings | None = None,
        on_page: Callable[[Target, EnginePage], None] | None = None,
    ) -> None:
        self.pipeline = Pipeline(pipeline or pipeline_settings(settings), thresholds)
        self.fleet = EngineFleet(settings, clock, on_page or self._on_page)
        self.node = NodeSources(settings, clock, self._on_gpus, registered)

    async def stop(self) -> None:
        """Stop everything that samples."""
        await asyncio.gather(self.fleet.stop(), self.node.stop())

    def judge_by(self, before: Settings, settings: Settings, thresholds: Thresholds) -> None:
        """Judge by new settings; where windows or limits differ, a new pipeline starts from the old one's baselines."""
        new = pipeline_settings(settings)
        if pipeline_settings(before) != replace(new, price=_price(before.gpu)):
            baselines, self.pipeline = self.pipeline.baselines(), Pipeline(new, thresholds)
            self.pipeline.restore_baselines(baselines)
        self.pipeline.settings = new
        self.pipeline.set_thresholds(thresholds)

    def _on_page(self, target: Target, page: EnginePage) -> None:
        self.pipeline.on_page(target, page)

    def _on_gpus(self, source: str, report: GpuReport) -> None:
        self.pipeline.on_gpus(source, report)


def pipeline_settings(settings: Settings) -> PipelineSettings:
    """Return what of the settings the pipeline judges by."""
    return PipelineSettings(
        window_seconds=settings.window_seconds,
        long_window_seconds=settings.long_window_seconds,
        staleness_seconds=settings.staleness_seconds,
        engine_stale_seconds=max(
            settings.staleness_seconds, settings.poll.timeout_seconds + 3 * settings.poll.interval_seconds
        ),
        max_engines=settings.limits.max_engines,
        price=_price(settings.gpu),
    )


def _price(gpu: GpuSettings) -> Price | None:
    return None if gpu.price_per_hour is None else Price(gpu.price_per_hour, gpu.currency)
