"""The demo's GPUs: a source without a child, whose reports come from a callable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from kvpressure.model.samples import GpuReport, SourceHealth
from kvpressure.sources.gpu.process import Status
from kvpressure.sources.source import Source

SOURCE: Final = "recorded"
"""The name of this source in health series."""


class InProcessGpuSource(Source):
    """Polls `read`, which takes unix seconds, must not block and should not raise."""

    def __init__(
        self,
        read: Callable[[float], GpuReport],
        interval_seconds: float = 1.0,
        on_report: Callable[[GpuReport], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.latest: GpuReport | None = None
        self._read = read
        self._interval_seconds = interval_seconds
        self._on_report = on_report
        self._clock = clock
        self._status = Status(SOURCE, clock())

    def health(self) -> tuple[SourceHealth, ...]:
        """One record."""
        return (self._status.health,)

    def poll(self) -> GpuReport:
        """One reading, now; what `run` does at every interval."""
        report = self.latest = self._read(self._clock())
        self._status.reported(self._clock(), report)
        if self._on_report is not None:
            self._on_report(report)
        return report

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            self.poll()
            await asyncio.sleep(self._interval_seconds)
