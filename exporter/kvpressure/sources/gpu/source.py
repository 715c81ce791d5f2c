"""The GPUs of this machine: one source for each vendor's library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from kvpressure.config.settings.model import GpuSettings
from kvpressure.model.samples import SourceHealth
from kvpressure.sources.gpu.backend import BACKENDS
from kvpressure.sources.gpu.process import GpuSource
from kvpressure.sources.gpu.settings import GpuSettings as ChildSettings
from kvpressure.sources.source import OnReport, Registration, Source, Wiring


class GpuReader(Protocol):
    """What reads one vendor's GPUs, in a child process or in this one."""

    def health(self) -> SourceHealth:
        """How it is doing."""

    def detach(self) -> None:
        """Let go of the driver for a while."""

    async def run(self) -> None:
        """Read until cancelled."""


GpuFactory = Callable[[GpuSettings, OnReport], Iterable[GpuReader]]


def real_gpus(settings: GpuSettings, on_report: OnReport) -> Iterable[GpuReader]:
    """The vendor libraries of this machine."""
    options = ChildSettings(
        interval_seconds=settings.interval_seconds, gpm=settings.gpm, detach_seconds=settings.detach_seconds
    )
    vendors = tuple(BACKENDS) if "auto" in settings.vendors else settings.vendors
    return [GpuSource(name, options, partial(on_report, BACKENDS[name].source)) for name in vendors]


class _Vendor(Source):
    """One reader, as a source."""

    def __init__(self, reader: GpuReader) -> None:
        self._reader = reader

    async def run(self) -> None:
        """Read until cancelled."""
        await self._reader.run()

    def detach(self) -> None:
        """Let go of the driver for a while."""
        self._reader.detach()

    def health(self) -> tuple[SourceHealth, ...]:
        """One record."""
        return (self._reader.health(),)


def registration(factory: GpuFactory = real_gpus) -> Registration[GpuSettings]:
    """GPUs as `factory` makes readers of them: those of the machine, or simulated ones."""

    def make(settings: GpuSettings, wiring: Wiring) -> Sequence[Source]:
        return [_Vendor(reader) for reader in factory(settings, wiring.on_gpus)]

    return Registration(
        "gpu",
        make,
        {**{row.source: row.title for row in BACKENDS.values()}, "simulated": "Simulated GPUs"},
        section="gpu",
        settings=GpuSettings,
        gives_gpus=True,
        logged_by_exporter=True,
    )


SOURCE: Final = registration()
