"""The GPUs of this machine: one source for each vendor's library, whatever the driver does to its child process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Final

import structlog

from kvpressure.config.settings.model import GpuSettings as Section
from kvpressure.model.errors import InternalError, SourceError, TimedOutError
from kvpressure.model.samples import GpuReport, SourceHealth
from kvpressure.net.threads import bug
from kvpressure.sources.gpu.backend import BACKENDS, EXIT_CODES, AbsentError, CrashedError, GpuSettings, ReopenError
from kvpressure.sources.gpu.spawn import ChildProcess
from kvpressure.sources.gpu.wire import decode
from kvpressure.sources.source import OnReport, Registration, Source

GRACE_SECONDS: Final = 0.5
MAX_LEFT_BEHIND: Final = 2
MAX_REASONS: Final = 64
"""Each is a series; those of a child gone mad are counted as "other"."""

_ENDINGS: Final = {code: kind for kind, code in EXIT_CODES.items()}

log = structlog.get_logger("kvpressure.sources")


def child_command(vendor: str, settings: GpuSettings) -> list[str]:
    """Return the child's command line; -P keeps the working directory from shadowing its imports."""
    options = json.dumps(asdict(settings))
    return [sys.executable, "-P", "-m", "kvpressure.sources.gpu.child", vendor, options]


def child_environment(settings: GpuSettings) -> dict[str, str]:
    """Return our environment, with the library paths first and one malloc arena: the child's threads need little."""
    paths = [*settings.library_paths, os.environ.get("LD_LIBRARY_PATH", "")]
    loader = {"LD_LIBRARY_PATH": ":".join(path for path in paths if path)} if any(paths) else {}
    return {**os.environ, **loader, "MALLOC_ARENA_MAX": "1"}


class DetachedError(SourceError, reason="detached"):
    """The child was ended on request."""


class Status:
    """The health of one source as it changes; times are unix seconds."""

    def __init__(self, source: str, t: float) -> None:
        self._errors: dict[str, int] = {}
        self.health = SourceHealth(source, "", False, t, error="no answer yet", reason="starting")

    def reported(self, t: float, report: GpuReport) -> None:
        """Take a report. One device in trouble is enough to be down: the others' data flow all the same."""
        newest = report.t if report.gpus else self.health.last_success
        self.health = replace(self.health, duration_seconds=max(0.0, t - report.t), last_success=newest)
        if not report.errors:
            self._set(t, "", "", up=True)
            return
        sentences = [f"GPU {device}: {error.partition(': ')[2]}" for device, error in report.errors.items()]
        reason = next(iter(report.errors.values())).partition(":")[0]
        self._count(reason)
        self._set(t, reason, "; ".join(sentences))

    def failed(self, t: float, failure: SourceError) -> None:
        """Note that the child ended. A vendor that is not there is counted once, not at every probe."""
        if not isinstance(failure, AbsentError) or failure.reason != self.health.reason:
            self._count(failure.reason)
        self._set(t, failure.reason, failure.sentence)

    def detached(self, t: float, request: DetachedError) -> None:
        """Note that it is detached on request: down, and no failure."""
        self._set(t, request.reason, request.sentence)

    def _count(self, reason: str) -> None:
        if reason not in self._errors and len(self._errors) >= MAX_REASONS:
            reason = "other"
        self._errors[reason] = self._errors.get(reason, 0) + 1

    def _set(self, t: float, reason: str, error: str, *, up: bool = False) -> None:
        self.health = replace(self.health, t=t, up=up, reason=reason, error=error, errors=dict(self._errors))


class GpuSource(Source):
    """All GPUs of one vendor. `latest` is the newest report; each is also handed to `on_report`.

    A report carries the readings that are new in it: a slow device is missing from some reports, and its sample has
    its own `t`.
    """

    def __init__(
        self,
        vendor: str,
        settings: GpuSettings,
        on_report: Callable[[GpuReport], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.vendor = vendor
        self.latest: GpuReport | None = None
        self.starts = 0
        self._settings = settings
        self._on_report = on_report
        self._clock = clock
        self._status = Status(BACKENDS[vendor].source, clock())
        self._child: ChildProcess | None = None
        self._left_behind: list[ChildProcess] = []
        self._failures_in_a_row = 0
        self._not_before = 0.0

    def health(self) -> tuple[SourceHealth, ...]:
        """Return one record; its `reason` is "starting" until the first answer."""
        return (self._status.health,)

    def detach(self) -> None:
        """End the child, so that nothing holds the device files; it starts again after `detach_seconds`."""
        seconds = self._settings.detach_seconds
        self._not_before = asyncio.get_running_loop().time() + seconds
        request = DetachedError(f"detached on request; attaches again by itself after {seconds:g} s")
        self._status.detached(self._clock(), request)
        if self._child is not None:
            self._child.lines.put_nowait(request)

    async def run(self) -> None:
        """Keep a child reporting until cancelled; the child is gone when this returns."""
        loop = asyncio.get_running_loop()
        while True:
            rest = self._not_before - loop.time()
            if rest > 0:  # and look again: a detach may have come in the meantime
                await asyncio.sleep(rest)
                continue
            started = loop.time()
            try:
                failure = await self._one_child()
            except Exception as error:  # noqa: BLE001 a bug met with one child must not end the task that keeps them
                failure = self._fail(self._bug(error))
            self._not_before = max(self._not_before, loop.time() + self._pause(failure, loop.time() - started))

    def _pause(self, failure: SourceError, lived_seconds: float) -> float:
        """Return seconds until the next child, which must live longer than the longest back-off to clear the count."""
        settings = self._settings
        if isinstance(failure, AbsentError):
            return settings.probe_seconds
        if lived_seconds > settings.backoff_max_seconds or isinstance(failure, ReopenError | DetachedError):
            self._failures_in_a_row = 0
        if isinstance(failure, ReopenError | DetachedError):
            return 0.0
        self._failures_in_a_row += 1
        doublings = min(self._failures_in_a_row - 1, 16)
        return min(settings.backoff_max_seconds, settings.backoff_min_seconds * 2.0**doublings)

    async def _one_child(self) -> SourceError:
        self._left_behind = [child for child in self._left_behind if child.exit_code() is None]
        if len(self._left_behind) >= MAX_LEFT_BEHIND:
            return self._fail(TimedOutError(f"{MAX_LEFT_BEHIND} killed children are still stuck in the driver"))
        try:
            child = ChildProcess(child_command(self.vendor, self._settings), child_environment(self._settings))
        except OSError as error:
            return self._fail(CrashedError(f"the child process cannot be started: {error}"))
        self._child = child
        self.starts += 1
        failure: SourceError = DetachedError("")  # the reason of a cancelled run: the child gets time to end
        try:
            failure = await self._follow(child)
        finally:
            self._child = None
            if not await child.stop(0.0 if isinstance(failure, TimedOutError) else GRACE_SECONDS):
                self._left_behind.append(child)
        return self._fail(failure)

    def _fail(self, failure: SourceError) -> SourceError:
        if isinstance(failure, DetachedError):
            self._status.detached(self._clock(), failure)
        elif not isinstance(failure, ReopenError):
            self._status.failed(self._clock(), failure)
        return failure

    async def _follow(self, child: ChildProcess) -> SourceError:
        """Take reports until there are no more; return why."""
        seconds = self._settings.start_seconds
        while True:
            try:
                async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may swallow a cancellation
                    line = await child.lines.get()
            except TimeoutError:
                return TimedOutError(f"no reading within {seconds:g} s; the child process was killed")
            if not isinstance(line, bytes):
                return line or await self._explain(child)
            try:
                self._accept(decode(line))
            except ValueError as error:
                return CrashedError(f"the child process wrote something else than reports: {error}")
            seconds = max(self._settings.deadline_seconds, 5 * self._settings.interval_seconds)

    def _accept(self, report: GpuReport) -> None:
        self.latest = report
        try:
            if self._on_report is not None:
                self._on_report(report)
        except Exception as error:  # noqa: BLE001 it is the callback's; the next one may be taken
            self._fail(self._bug(error))
        else:
            self._status.reported(self._clock(), report)

    def _bug(self, error: Exception) -> SourceError:
        if self._status.health.reason != InternalError.reason:
            log.error("GPU report could not be processed", source=self._status.health.source, exc_info=error)
        return bug(error)

    async def _explain(self, child: ChildProcess) -> SourceError:
        await child.wait(GRACE_SECONDS)
        code = child.exit_code()
        if code in _ENDINGS:
            return _ENDINGS[code](child.last_words())
        if code is None:
            return CrashedError("the child process closed its output and lives on; it was killed")
        name = f"signal {-code}"  # the real-time ones between the first and the last have none
        with suppress(ValueError):
            name = signal.Signals(-code).name
        ending = f"ended with {code}" if code >= 0 else f"was killed by {name}"
        return CrashedError(" ".join(f"the child process {ending}. {child.last_words()}".split()))


GpuFactory = Callable[[Section, OnReport], Sequence[Source]]


def real_gpus(settings: Section, on_report: OnReport) -> Sequence[Source]:
    """Return the vendor libraries of this machine."""
    options = GpuSettings(interval_seconds=settings.interval_seconds, gpm=settings.gpm)
    vendors = tuple(BACKENDS) if "auto" in settings.vendors else settings.vendors
    return [GpuSource(name, options, partial(on_report, BACKENDS[name].source)) for name in vendors]


def registration(factory: GpuFactory = real_gpus) -> Registration[Section]:
    """Return the source of GPUs as `factory` makes readers of them: those of the machine, or simulated ones."""
    return Registration(
        "gpu",
        lambda settings, wiring: factory(settings, wiring.on_gpus),
        {**{row.source: row.title for row in BACKENDS.values()}, "simulated": "Simulated GPUs"},
        section="gpu",
        settings=Section,
        gives_gpus=True,
        logged_by_exporter=True,
    )


SOURCE: Final = registration()
