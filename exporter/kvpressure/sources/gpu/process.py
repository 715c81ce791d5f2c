"""The GPUs of this machine: one source for each vendor's library, whatever the driver does to its child process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Final

import structlog

from kvpressure.config.settings.model import GpuSettings as Section
from kvpressure.model.errors import InternalError, SourceError, TimedOutError
from kvpressure.model.samples import GpuReport, SourceHealth
from kvpressure.net.guard import Health
from kvpressure.net.threads import bug
from kvpressure.net.waiting import cancel
from kvpressure.sources.gpu.backend import (
    ABSENT_REASONS,
    BACKENDS,
    FIRST_CODE,
    REASONS,
    REOPEN,
    BackendError,
    CrashedError,
    GpuSettings,
)
from kvpressure.sources.gpu.wire import decode
from kvpressure.sources.source import OnReport, Registration, Source

GRACE_SECONDS: Final = 0.5
KILLED_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.01
MAX_LEFT_BEHIND: Final = 2
READ_BYTES: Final = 64 * 1024
LINE_BYTES: Final = 1024 * 1024
REST_SECONDS: Final = 0.02
"""After each line of the child, and each 64 KiB of what its library prints: a flood waits in the pipe."""
STDERR_BYTES: Final = 4096

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
        self.pid: int | None = None
        """Of the child, None while there is none."""
        self._settings = settings
        self._on_report = on_report
        self._clock = clock
        self._health = Health(BACKENDS[vendor].source, "", clock(), "no answer yet")
        self._following: asyncio.Task[SourceError] | None = None
        self._left_behind: list[Process] = []
        self._failures_in_a_row = 0
        self._not_before = 0.0

    def health(self) -> tuple[SourceHealth, ...]:
        """Return one record; its `reason` is "pending" until the first answer."""
        return (self._health.latest,)

    def detach(self) -> None:
        """End the child, so that nothing holds the device files; it starts again after `detach_seconds`."""
        self._not_before = asyncio.get_running_loop().time() + self._settings.detach_seconds
        self._fail(self._detached())
        if self._following is not None:
            self._following.cancel()

    def _detached(self) -> DetachedError:
        seconds = self._settings.detach_seconds
        return DetachedError(f"detached on request; attaches again by itself after {seconds:g} s")

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
                failure = self._bug(error)
            self._fail(failure)
            self._not_before = max(self._not_before, loop.time() + self._pause(failure, loop.time() - started))

    def _pause(self, failure: SourceError, lived_seconds: float) -> float:
        """Return seconds until the next child, which must live longer than the longest back-off to clear the count."""
        settings = self._settings
        if failure.reason in ABSENT_REASONS:
            return settings.probe_seconds
        at_once = failure.reason in (REOPEN, DetachedError.reason)
        if lived_seconds > settings.backoff_max_seconds or at_once:
            self._failures_in_a_row = 0
        if at_once:
            return 0.0
        self._failures_in_a_row += 1
        doublings = min(self._failures_in_a_row - 1, 16)
        return min(settings.backoff_max_seconds, settings.backoff_min_seconds * 2.0**doublings)

    async def _one_child(self) -> SourceError:
        """Follow a child to its end; return why it ended."""
        self._left_behind = [child for child in self._left_behind if child.returncode is None]
        if len(self._left_behind) >= MAX_LEFT_BEHIND:
            return TimedOutError(f"{MAX_LEFT_BEHIND} killed children are still stuck in the driver")
        command, environment = child_command(self.vendor, self._settings), child_environment(self._settings)
        try:
            # Forked from the loop's thread: the child's parent-death signal follows the thread that made it.
            # Its own process group, so that Ctrl-C reaches the exporter alone.
            child = await asyncio.create_subprocess_exec(
                *command, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=LINE_BYTES, process_group=0
            )
        except OSError as error:
            return CrashedError(f"the child process cannot be started: {error}")
        self.starts += 1
        self.pid = child.pid
        last_words = bytearray()
        complaining = asyncio.create_task(_keep_tail(child, last_words))
        self._following = asyncio.create_task(self._follow(child, last_words))
        failure: SourceError = self._detached()
        try:
            await asyncio.wait((self._following,))
            if not self._following.cancelled():
                failure = self._following.result()
        finally:
            following, self._following = self._following, None
            await cancel((following, complaining))
            self.pid = None
            if not await _end(child, 0.0 if isinstance(failure, TimedOutError) else GRACE_SECONDS):
                self._left_behind.append(child)
        return failure

    def _fail(self, failure: SourceError) -> None:
        """Note that the child ended. A vendor that is not there is counted once, not at every probe."""
        if failure.reason == REOPEN:
            return
        again = failure.reason in ABSENT_REASONS and failure.reason == self._health.latest.reason
        self._health.down(self._clock(), failure, counted=not again and not isinstance(failure, DetachedError))

    async def _follow(self, child: Process, last_words: bytearray) -> SourceError:
        """Take reports until there are no more; return why."""
        seconds = self._settings.start_seconds
        while child.stdout is not None:
            try:
                async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may swallow a cancellation
                    line = await child.stdout.readline()
            except TimeoutError:
                return TimedOutError(f"no reading within {seconds:g} s; the child process was killed")
            except ValueError:
                return CrashedError(f"the child process wrote a line longer than {LINE_BYTES} bytes")
            if not line:
                break
            try:
                self._accept(decode(line))
            except ValueError as error:
                return CrashedError(f"the child process wrote something else than reports: {error}")
            seconds = max(self._settings.deadline_seconds, 5 * self._settings.interval_seconds)
            await asyncio.sleep(REST_SECONDS)
        return await _explained(child, last_words)

    def _accept(self, report: GpuReport) -> None:
        self.latest = report
        try:
            if self._on_report is not None:
                self._on_report(report)
        except Exception as error:  # noqa: BLE001 it is the callback's; the next one may be taken
            self._fail(self._bug(error))
        else:
            take_report(self._health, self._clock(), report)

    def _bug(self, error: Exception) -> SourceError:
        if self._health.latest.reason != InternalError.reason:
            log.error("GPU report could not be processed", source=self._health.latest.source, exc_info=error)
        return bug(error)


def take_report(health: Health, t: float, report: GpuReport) -> None:
    """Note a report. One device in trouble is enough to be down: the others' data flow all the same."""
    if report.gpus or not report.errors:
        health.up(t, max(0.0, t - report.t))
    if report.errors:
        reason = next(iter(report.errors.values())).partition(":")[0]
        sentences = (f"GPU {device}: {error.partition(': ')[2]}" for device, error in report.errors.items())
        health.down(t, BackendError(reason, "; ".join(sentences)), max(0.0, t - report.t))


async def _keep_tail(child: Process, tail: bytearray) -> None:
    """Read what the child's library prints, and keep its end."""
    while child.stderr is not None and (chunk := await child.stderr.read(READ_BYTES)):
        tail += chunk
        del tail[:-STDERR_BYTES]
        await asyncio.sleep(REST_SECONDS)


async def _explained(child: Process, last_words: bytearray) -> SourceError:
    """Return why a child that writes no more has ended."""
    await _gone(child, GRACE_SECONDS)
    lines = last_words.decode(errors="replace").strip().splitlines()
    code, said = child.returncode, lines[-1].strip() if lines else ""
    if code is None:
        return CrashedError("the child process closed its output and lives on; it was killed")
    if 0 <= code - FIRST_CODE < len(REASONS):
        return BackendError(REASONS[code - FIRST_CODE], said)
    name = f"signal {-code}"  # the real-time ones between the first and the last have none
    with suppress(ValueError):
        name = signal.Signals(-code).name
    ending = f"ended with {code}" if code >= 0 else f"was killed by {name}"
    return CrashedError(" ".join(f"the child process {ending}. {said}".split()))


async def _gone(child: Process, seconds: float) -> bool:
    """Whether the child ends within `seconds`. Not `Process.wait`, which also waits for those that hold its pipes."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while child.returncode is None:
        if loop.time() >= until:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


async def _end(child: Process, grace_seconds: float) -> bool:
    """End the child's input, then kill it and all that it started. False where it is stuck in the kernel."""
    if child.stdin is not None:
        child.stdin.close()
    try:
        await _gone(child, grace_seconds)
    finally:
        with suppress(OSError):  # none is left, or it runs as another user
            os.killpg(child.pid, signal.SIGKILL)
    for stream in (child.stdout, child.stderr):  # a pipe that is not read to its end stays open
        with suppress(TimeoutError):
            async with asyncio.timeout(KILLED_SECONDS):
                while stream is not None and await stream.read(READ_BYTES):
                    pass
    return await _gone(child, KILLED_SECONDS)


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
