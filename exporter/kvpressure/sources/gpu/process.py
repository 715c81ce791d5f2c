"""The exporter's side of a GPU source: keeps one child per vendor reporting, whatever the driver does to it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

import structlog

from kvpressure.model.samples import GpuReport, SourceHealth
from kvpressure.printable import brief
from kvpressure.sources.gpu.backend import ABSENT, BACKENDS, EXIT_CODES
from kvpressure.sources.gpu.settings import GpuSettings
from kvpressure.sources.gpu.spawn import ChildProcess, Ended
from kvpressure.sources.gpu.status import Failure, Status
from kvpressure.sources.gpu.wire import decode

GRACE_SECONDS: Final = 0.5
MAX_LEFT_BEHIND: Final = 2
_REASONS: Final = {code: reason for reason, code in EXIT_CODES.items()}

log = structlog.get_logger("kvpressure.sources")


def child_command(vendor: str, settings: GpuSettings) -> list[str]:
    """The child's command line; -P keeps the working directory from shadowing its imports."""
    options = {
        "vendor": vendor,
        "interval": settings.interval_seconds,
        "gpm": int(settings.gpm),
        "device-wait": settings.device_patience_seconds,
        "device-error": settings.device_error_seconds,
        "reopen": settings.reopen_seconds,
    }
    arguments = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    return [sys.executable, "-P", "-m", "kvpressure.sources.gpu.child", *arguments]


def child_environment(settings: GpuSettings) -> dict[str, str]:
    """Our environment, with the library paths first and one malloc arena: the child's threads allocate little."""
    paths = [*settings.library_paths, os.environ.get("LD_LIBRARY_PATH", "")]
    loader = {"LD_LIBRARY_PATH": ":".join(path for path in paths if path)} if any(paths) else {}
    return {**os.environ, **loader, "MALLOC_ARENA_MAX": "1"}


class GpuSource:
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

    @property
    def absent(self) -> bool:
        """Whether this machine simply does not have the vendor's library: normal, and not worth an alert."""
        return self._status.reason in ABSENT

    def health(self) -> SourceHealth:
        """How the source is doing now; `reason` is "starting" until the first answer."""
        return self._status.health()

    def detach(self) -> None:
        """End the child, so that nothing holds the device files; it starts again after `detach_seconds`."""
        seconds = self._settings.detach_seconds
        self._not_before = asyncio.get_running_loop().time() + seconds
        sentence = f"detached on request; attaches again by itself after {seconds:g} s"
        self._status.detached(self._clock(), sentence)
        if self._child is not None:
            self._child.lines.put_nowait(Ended("detached", sentence))

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

    def _pause(self, failure: Failure, lived_seconds: float) -> float:
        """Seconds until the next child. A child must live longer than the longest back-off to clear the count."""
        settings = self._settings
        if failure.reason in ABSENT:
            return settings.probe_seconds
        if lived_seconds > settings.backoff_max_seconds or failure.reason in ("reopen", "detached"):
            self._failures_in_a_row = 0
        if failure.reason in ("reopen", "detached"):
            return 0.0
        self._failures_in_a_row += 1
        doublings = min(self._failures_in_a_row - 1, 16)
        return min(settings.backoff_max_seconds, settings.backoff_min_seconds * 2.0**doublings)

    async def _one_child(self) -> Failure:
        self._left_behind = [child for child in self._left_behind if child.exit_code() is None]
        if len(self._left_behind) >= MAX_LEFT_BEHIND:
            return self._fail(Failure("timeout", f"{MAX_LEFT_BEHIND} killed children are still stuck in the driver"))
        try:
            child = ChildProcess(child_command(self.vendor, self._settings), child_environment(self._settings))
        except OSError as error:
            return self._fail(Failure("crashed", f"the child process cannot be started: {error}"))
        self._child = child
        self.starts += 1
        failure = Failure("detached", "")  # what a cancelled run leaves by: asks before it kills
        try:
            failure = await self._follow(child)
        finally:
            self._child = None
            if not await child.stop(0.0 if failure.reason == "timeout" else GRACE_SECONDS):
                self._left_behind.append(child)
        return self._fail(failure)

    def _fail(self, failure: Failure) -> Failure:
        if failure.reason == "detached":
            self._status.detached(self._clock(), failure.sentence)
        elif failure.reason != "reopen":
            self._status.failed(self._clock(), failure)
        return failure

    async def _follow(self, child: ChildProcess) -> Failure:
        """Take reports until there are no more; why there are none."""
        patience = self._settings.start_seconds
        while True:
            try:
                async with asyncio.timeout(patience):  # wait_for of Python 3.11 may swallow a cancellation
                    line = await child.lines.get()
            except TimeoutError:
                return Failure("timeout", f"no reading within {patience:g} s; the child process was killed")
            if isinstance(line, Ended):
                return await self._explain(child, line)
            try:
                self._accept(decode(line))
            except ValueError as error:
                return Failure("crashed", f"the child process wrote something else than reports: {error}")
            patience = self._settings.report_deadline_seconds

    def _accept(self, report: GpuReport) -> None:
        self.latest = report
        try:
            if self._on_report is not None:
                self._on_report(report)
        except Exception as error:  # noqa: BLE001 it belongs to whoever takes reports; the next one may be taken
            self._fail(self._bug(error))
        else:
            self._status.reported(self._clock(), report)

    def _bug(self, error: Exception) -> Failure:
        if self._status.reason != "internal":
            log.error("GPU report could not be processed", source=self._status.health().source, exc_info=error)
        return Failure("internal", f"{type(error).__name__}: {brief(error)}; please report this")

    async def _explain(self, child: ChildProcess, ended: Ended) -> Failure:
        if ended.reason:
            return Failure(ended.reason, ended.why)
        await child.wait(GRACE_SECONDS)
        code = child.exit_code()
        if code in _REASONS:
            return Failure(_REASONS[code], child.last_words())
        if code is None:
            return Failure("crashed", "the child process closed its output and lives on; it was killed")
        ending = f"ended with {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
        return Failure("crashed", " ".join(f"the child process {ending}. {child.last_words()}".split()))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time ones between the first and the last have none
        return f"signal {number}"
