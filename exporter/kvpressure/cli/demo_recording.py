"""The demo's engine and GPUs: a recording that is packaged, served over loopback as it went on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Final

from aiohttp import web

from kvpressure.engines.recordings import TraceError, TraceLine, read_trace
from kvpressure.exposition.text import TEXT
from kvpressure.model.samples import GpuSample

RECORDING: Final = "demo.jsonl.xz"
"""Made by `make demo-recording`. The label of a line is what the demo says of its phase."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the incident and what is said of it; times are seconds from its beginning."""

    begin: float
    end: float
    note: str

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end - self.begin


class Recorded:
    """The packaged incident, which the demo plays. Seconds count from its beginning; what was recorded last stays."""

    def __init__(self) -> None:
        with resources.as_file(resources.files("kvpressure.cli") / "data" / RECORDING) as path:
            self._lines = _lines(path)
        first = self._lines[0].t
        spacing = self._lines[1].t - first
        self._at = [line.t - first for line in self._lines]
        told = [(line.t - first, line.label) for line in self._lines if line.label]
        stretches = [[at for at, _ in group] for _, group in groupby(told, key=lambda one: one[1])]
        notes = [note for note, _ in groupby(note for _, note in told)]
        self.phases = tuple(
            Phase(times[0], times[-1] + spacing, note or "") for times, note in zip(stretches, notes, strict=True)
        )

    def page(self, seconds: float) -> bytes:
        """Return the newest page of that time."""
        return self._line(seconds).page

    def gpus(self, seconds: float) -> Sequence[GpuSample]:
        """Return the newest readings of that time."""
        report = self._line(seconds).gpus
        return () if report is None else report.gpus

    def _line(self, seconds: float) -> TraceLine:
        return self._lines[max(0, bisect_right(self._at, seconds) - 1)]


def engine_app(incident: Recorded, now: Callable[[], float]) -> web.Application:
    """Return a server of the engine's page; `now` gives the seconds since the incident began."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=incident.page(now()), headers={"Content-Type": TEXT})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app


def _lines(path: Path) -> list[TraceLine]:
    lines = []
    for line in read_trace(path):
        if isinstance(line, TraceError):
            raise line
        lines.append(line)
    return lines
