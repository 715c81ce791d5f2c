"""`kvpressure demo`: the exporter, with an engine that serves a recorded incident."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import groupby
from pathlib import Path

import click
from aiohttp import web

from kvpressure import logs
from kvpressure.cli.replay import Column, cells
from kvpressure.cli.report import cause_words
from kvpressure.cli.run import run_to_the_end, serve
from kvpressure.cli.say import fail, say
from kvpressure.config.settings import ConfigError, Settings, load_settings
from kvpressure.config.settings.load import load
from kvpressure.daemon.exporter import Daemon
from kvpressure.engines.recordings import TraceError, TraceLine, read_trace
from kvpressure.exposition.text import TEXT
from kvpressure.exposition.wording import meaning
from kvpressure.model.catalogue import NOT_KNOWN
from kvpressure.model.samples import GpuReport, GpuSample, SourceHealth
from kvpressure.model.view import EngineView
from kvpressure.net.guard import Health
from kvpressure.sources.gpu.process import take_report
from kvpressure.sources.source import OnReport, Source

RECORDING = "demo.jsonl.xz"
"""Made by `make demo-recording`. The label of a line is the demo's note on its phase."""

ROW_SECONDS = 5.0
SHORTEST_SECONDS, DEFAULT_SECONDS = 10.0, 30.0
"""Minimum and default of `triage --duration`."""
COLLAPSED = "collapsed"
"""Prefix of the note of the phase in which a triage shows most."""
_OFF = ("KUBERNETES", "POD_RESOURCES", "LOGS", "HOST")
HEAD = " time  running  waiting  batch p95  KV used  blocked  tokens/s  GPU mem  GPU use"
_COLUMNS: tuple[Column, ...] = (
    (7, ".0f", "requests_running"),
    (7, ".0f", "requests_waiting"),
    (9, ".1f", "effective_batch_size_quantile", "0.95"),
    (7, ".0%", "kv_cache_usage_ratio"),
    (7, ".0%", "admission_blocked_ratio"),
    (8, ".0f", "tokens_per_second", "generation"),
    (7, ".0%", "engine_gpu_memory_used_ratio"),
    (7, ".0%", "engine_gpu_utilization_ratio"),
)


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the incident with its note; times are seconds since the incident's begin."""

    begin: float
    end: float
    note: str

    @property
    def seconds(self) -> float:
        """The phase's length."""
        return self.end - self.begin


class Recorded:
    """The packaged incident. Seconds are since its begin; after its end the last line stays."""

    def __init__(self) -> None:
        with resources.as_file(resources.files("kvpressure.cli") / "data" / RECORDING) as path:
            read = list(read_trace(path))
        if broken := [line for line in read if isinstance(line, TraceError)]:
            raise broken[0]
        self._lines = [line for line in read if isinstance(line, TraceLine)]
        first = self._lines[0].t
        spacing = self._lines[1].t - first
        self._at = [line.t - first for line in self._lines]
        labelled = [(line.t - first, line.label or "") for line in self._lines if line.label]
        groups = [(note, [at for at, _ in group]) for note, group in groupby(labelled, key=lambda item: item[1])]
        self.phases = tuple(Phase(times[0], times[-1] + spacing, note) for note, times in groups)

    def page(self, seconds: float) -> bytes:
        """Return the newest page at that time."""
        return self._line(seconds).page

    def gpus(self, seconds: float) -> Sequence[GpuSample]:
        """Return the newest readings at that time."""
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


class DemoClock:
    """Wall and monotonic clocks that are `speed` times as fast as real time."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._began = time.monotonic()
        self._start = time.time()

    def wall(self) -> float:
        """Return unix seconds."""
        return self._start + self.monotonic()

    def monotonic(self) -> float:
        """Return seconds since the demo's begin."""
        return (time.monotonic() - self._began) * self.speed

    async def sleep_until(self, monotonic_seconds: float) -> None:
        """Return at that time of `monotonic`."""
        await asyncio.sleep(max(0.0, (monotonic_seconds - self.monotonic()) / self.speed))


class RecordedGpus(Source):
    """The incident's GPUs, read once a second of its clock, without a child process."""

    def __init__(self, incident: Recorded, clock: DemoClock, on_report: OnReport) -> None:
        self._incident, self._clock, self._on_report = incident, clock, on_report
        self._health = Health("recorded", "", clock.wall(), "no answer yet")

    def health(self) -> tuple[SourceHealth, ...]:
        """Return its health."""
        return (self._health.latest,)

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            t, now = self._clock.wall(), self._clock.monotonic()
            report = GpuReport(t, tuple(replace(sample, t=t) for sample in self._incident.gpus(now)))
            take_report(self._health, t, report)
            self._on_report("recorded", report)
            await self._clock.sleep_until(now + 1.0)


class Demo:
    """Serves the recorded engine and the exporter, and prints the phases on the terminal."""

    def __init__(self, speed: float, incident: Recorded | None = None) -> None:
        self.clock = DemoClock(speed)
        self.incident = incident or Recorded()
        self._engine_url = ""
        self._to_type = list[str]()

    async def run(self, listen_address: str) -> None:
        """Serve until interrupted. Raises ConfigError when the address cannot be bound."""
        runner = web.AppRunner(engine_app(self.incident, self.clock.monotonic), access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._engine_url = f"http://127.0.0.1:{runner.addresses[0][1]}"

            def read() -> Settings:
                return _settings(self._engine_url, listen_address)

            def gpus(_: object, on_report: OnReport) -> Sequence[Source]:
                return [RecordedGpus(self.incident, self.clock, on_report)]

            await serve(lambda: Daemon(load(read), read, gpus, self.clock), self._narrate)
        finally:
            await runner.cleanup()

    def _triage(self) -> list[str]:
        """Return the command to type in another terminal, with a duration that fits the phase."""
        collapsed = next(phase.seconds for phase in self.incident.phases if phase.note.startswith(COLLAPSED))
        seconds = triage_seconds(collapsed / self.clock.speed)
        if seconds is None:
            slow = f"--speed {collapsed / SHORTEST_SECONDS:g}"
            return ["At this speed it collapses for less time than a triage takes;", f"{slow} or less leaves it."]
        words = [*_typed(), "triage", self._engine_url]
        words += [] if seconds == DEFAULT_SECONDS else ["--duration", f"{seconds:g}"]
        self._to_type = ["", f"  {shlex.join(words)}"]
        return [
            "To see what an on-call engineer sees, type in another terminal while it has collapsed:",
            *self._to_type,
        ]

    async def _narrate(self, daemon: Daemon, urls: list[str]) -> None:
        phases = self.incident.phases
        minutes = phases[-1].end / self.clock.speed / 60
        say(
            f"A simulated engine goes through an incident; it takes about {minutes:.1f} minutes.",
            "",
            f"  the page     {urls[0]}/",
            f"  the metrics  {urls[0]}/metrics",
            f"  the engine   {self._engine_url}/metrics",
            "",
            "Ctrl-C ends it.",
            *self._triage(),
            "",
        )
        shown, verdict, next_row = None, "", 0.0
        while (seconds := self.clock.monotonic()) < phases[-1].end:
            phase = next(phase for phase in phases if seconds < phase.end)
            if phase is not shown:
                shown = phase
                again = phase.note.startswith(COLLAPSED) and self._to_type
                typed = ["", "Now type in another terminal:", *self._to_type, ""] if again else []
                say("", f"{_clock_text(seconds)}  {phase.note}", *typed, HEAD)
            if seconds >= next_row:
                next_row = seconds + ROW_SECONDS
                for view in daemon.snapshot().engines:
                    if (latest := _verdict(view)) not in ("", verdict):
                        verdict = latest
                        say(f"       kvpressure says: {verdict}")
                    say("  ".join((_clock_text(seconds), *cells(view.derived, _COLUMNS))))
            await asyncio.sleep(min(0.5, ROW_SECONDS / self.clock.speed / 4))
        say(
            "",
            "The incident is over; the exporter goes on serving until Ctrl-C.",
            "For a server of yours, in any terminal:",
            "",
            f"  {shlex.join([*_typed(), 'triage', 'HOST:PORT'])}",
        )


def triage_seconds(collapsed_seconds: float) -> float | None:
    """Return the duration of a triage within so many seconds, None where they are too few.

    Half of the time is for reading and typing.
    """
    if collapsed_seconds < SHORTEST_SECONDS:
        return None
    return max(SHORTEST_SECONDS, min(DEFAULT_SECONDS, collapsed_seconds // 2))


def _typed() -> list[str]:
    """Return the words of the command line that start this program in any directory."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":  # python -m kvpressure, as `make demo` does without installing it
        parts = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        path = os.pathsep.join(str(Path(part).absolute()) for part in parts)
        return [*(["env", f"PYTHONPATH={path}"] if path else []), sys.executable, "-m", "kvpressure"]
    found = shutil.which(program.name)
    return [program.name if found and Path(found).samefile(program) else str(program.absolute())]


def _settings(url: str, listen_address: str) -> Settings:
    return load_settings(
        {"--web.listen-address": listen_address, "--log.level": "error"},
        {
            "KVPRESSURE_ENGINES__TARGETS": f'[{{"name": "demo", "url": "{url}", "gpus": "all"}}]',
            # Only the recording is shown, on any machine.
            **{f"KVPRESSURE_{name}__ENABLED": "false" for name in _OFF},
        },
    )


def _verdict(view: EngineView) -> str:
    """Return the diagnosis in words, "" before the first."""
    if (diagnosis := view.diagnosis) is None or diagnosis.cause is NOT_KNOWN:
        return ""
    return f"{cause_words(diagnosis)}. {meaning(diagnosis, view.runtime)}"


def _clock_text(seconds: float) -> str:
    return f"{int(seconds) // 60:2}:{int(seconds) % 60:02}"


@click.command()
@click.option("--web.listen-address", "listen_address", default="127.0.0.1:10405", show_default=True, metavar="TEXT")
@click.option("--speed", default=1.0, show_default=True, type=click.FloatRange(0.1, 20), help="Times real time.")
def command(listen_address: str, speed: float) -> None:
    """Watch an incident: idle, healthy, building, collapsed, recovered.

    Needs no GPU, no model, no root and no network: the exporter reads a recorded server over loopback.
    """
    # A slow machine misses the deadlines that the demo's clock shortens; they are not shown.
    logs.configure("error", "logfmt")
    try:
        run_to_the_end(Demo(speed).run(listen_address))
    except ConfigError as error:  # the address: the demo has no settings
        fail(*error.problems)


def serve_engine(port: int) -> None:
    """Serve the engine alone, its incident again and again; what deploy/compose starts."""
    incident, began = Recorded(), time.monotonic()
    whole = incident.phases[-1].end
    web.run_app(engine_app(incident, lambda: (time.monotonic() - began) % whole), port=port, print=None)


if __name__ == "__main__":
    serve_engine(int(sys.argv[1]))
