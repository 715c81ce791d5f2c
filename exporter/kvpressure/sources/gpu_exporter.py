"""GPUs as another exporter on the node reports them: NVIDIA's dcgm-exporter or AMD's device-metrics-exporter.

For nodes where one of them runs already, or where no driver library may be loaded. GPUs that a vendor's library gives
too are left to it. What a page means is in `gpu/exporter_pages.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from yarl import URL

from kvpressure.config.settings.polling import ClientSettings
from kvpressure.config.settings.types import Endpoint
from kvpressure.model.environment import Assignment, ContainerId, Environment
from kvpressure.model.samples import GpuReport, SourceHealth
from kvpressure.net.budget import BUDGET
from kvpressure.net.guard import Guard
from kvpressure.net.http import shown
from kvpressure.sources.gpu.exporter_pages import NAME, WANTED, read_page
from kvpressure.sources.metrics_page import MetricsPage
from kvpressure.sources.source import Known, Registration, Source, Wiring

DEADLINE_MARGIN_SECONDS: Final = 0.2
INTERVAL_SECONDS: Final = 5.0


class GpuExporterSettings(ClientSettings):
    """Another GPU exporter on this node, read if the vendor's library is not."""

    url: Endpoint | None = None
    """Its metrics endpoint: `http://127.0.0.1:9400/metrics` (dcgm-exporter), `:5000/metrics` (AMD's
    device-metrics-exporter). Of one node; unset: none is read."""


class GpuExporterSource(Source):
    """Reads one such page at every tick."""

    def __init__(self, settings: GpuExporterSettings, wiring: Wiring) -> None:
        self._on_report = partial(wiring.on_gpus, NAME)
        self._url = URL(settings.url or "")
        share = BUDGET.share(NAME)
        self._guard = Guard[GpuReport](
            NAME, shown(self._url), interval_seconds=INTERVAL_SECONDS, clock=wiring.clock, share=share
        )
        self._page = MetricsPage(self._url, settings, WANTED, read_page, share, wiring.clock)
        self._held: Mapping[ContainerId, Assignment] = {}
        self._reported: dict[str, float] = {}
        self._elsewhere: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            await self._guard.run(self._read, self._take)
        finally:
            await self._page.aclose()

    async def read(self) -> None:
        """Read once."""
        await self._guard.attempt(self._read, self._take)

    def health(self) -> tuple[SourceHealth, ...]:
        """Return one record."""
        return (self._guard.health(),)

    def facts(self, known: Known) -> Environment:
        """Return the containers' GPUs where no nearer source knows them; note which GPUs other sources read."""
        self._elsewhere = frozenset(gpu.uuid for gpu in known.gpus if self._reported.get(gpu.uuid) != gpu.t)
        there = {gpu.uuid for gpu in known.gpus}
        others = known.environment.devices
        unknown = {key for key in self._held if key not in others or not there.issuperset(others[key].gpus)}
        return Environment(devices={key: self._held[key] for key in unknown} if self._guard.up else {})

    async def _read(self) -> GpuReport:
        # Before the guard's own deadline, so that it is known how far the answer came.
        _, (report, self._held) = await self._page.read(self._guard.deadline_seconds - DEADLINE_MARGIN_SECONDS)
        return report

    def _take(self, report: GpuReport) -> None:
        gpus = tuple(gpu for gpu in report.gpus if gpu.uuid not in self._elsewhere)
        self._reported = {gpu.uuid: gpu.t for gpu in gpus}
        self._on_report(GpuReport(report.t, gpus, report.rejected))


SOURCE: Final = Registration[GpuExporterSettings](
    NAME,
    lambda settings, wiring: [GpuExporterSource(settings, wiring)] if settings.url else [],
    {NAME: "GPUs (another exporter)"},
    section=NAME,
    settings=GpuExporterSettings,
    gives_gpus=True,
)
