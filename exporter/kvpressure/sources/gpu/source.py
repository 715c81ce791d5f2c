"""The GPUs of this machine: one source for each vendor's library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kvpressure.config.settings.model import GpuSettings
from kvpressure.sources.gpu.backend import BACKENDS
from kvpressure.sources.gpu.process import GpuSettings as ChildSettings
from kvpressure.sources.gpu.process import GpuSource
from kvpressure.sources.source import OnReport, Registration, Source

GpuFactory = Callable[[GpuSettings, OnReport], Sequence[Source]]


def real_gpus(settings: GpuSettings, on_report: OnReport) -> Sequence[Source]:
    """Return the vendor libraries of this machine."""
    options = ChildSettings(
        interval_seconds=settings.interval_seconds, gpm=settings.gpm, detach_seconds=settings.detach_seconds
    )
    vendors = tuple(BACKENDS) if "auto" in settings.vendors else settings.vendors
    return [GpuSource(name, options, partial(on_report, BACKENDS[name].source)) for name in vendors]


def registration(factory: GpuFactory = real_gpus) -> Registration[GpuSettings]:
    """GPUs as `factory` makes readers of them: those of the machine, or simulated ones."""
    return Registration(
        "gpu",
        lambda settings, wiring: factory(settings, wiring.on_gpus),
        {**{row.source: row.title for row in BACKENDS.values()}, "simulated": "Simulated GPUs"},
        section="gpu",
        settings=GpuSettings,
        gives_gpus=True,
        logged_by_exporter=True,
    )


SOURCE: Final = registration()
