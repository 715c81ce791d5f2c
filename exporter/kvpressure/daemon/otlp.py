"""Pushes the newest snapshot over OTLP, in a thread of its own: a receiver that hangs delays nothing else."""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, Final

from kvpressure.config.files import read_text
from kvpressure.config.settings.model import OtlpSettings
from kvpressure.config.strict_yaml import ConfigError, Problem
from kvpressure.exposition import Snapshot
from kvpressure.model.record import SourceError
from kvpressure.model.samples import SourceHealth
from kvpressure.net.guard import Health
from kvpressure.net.schedule import Clock
from kvpressure.net.waiting import cancel
from kvpressure.printable import brief

SOURCE: Final = "otlp"
PATH: Final = "/v1/metrics"
LIBRARY_LOG: Final = "opentelemetry"
MAX_LINES: Final = 100
NOT_INSTALLED: Final = (
    "OpenTelemetry is not installed: pip install 'kv-pressure-exporter[otlp]', or unset otlp.endpoint"
)

_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:[ \t]*([\x20-\x7e]*)")
_SYSTEM_ERROR: Final = re.compile(r"\[Errno -?\d+\] ([\w ]+)")

Sender = Callable[[Snapshot], str]
"""Sends a snapshot; returns the error, "" without one. Blocks; never raises."""


class OtlpPush:
    """Pushes a snapshot every `interval_seconds`, one at a time, where an endpoint is set."""

    def __init__(self, settings: OtlpSettings, snapshot: Callable[[], Snapshot], clock: Clock) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._health: Health | None = None

    def start(self) -> None:
        """Start pushing, where an endpoint is set."""
        if self._settings.endpoint is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(self._settings), name="otlp")

    async def stop(self) -> None:
        """Stop; a push under way is cancelled."""
        if self._task is not None:
            await cancel([self._task])
        self._task = self._health = None

    async def reload(self, settings: OtlpSettings) -> None:
        """Put other settings in force."""
        if settings != self._settings:
            await self.stop()
            self._settings = settings
            self.start()

    def health(self) -> tuple[SourceHealth, ...]:
        """Return the outcome of the last push, () before the first."""
        return () if self._health is None else (self._health.latest,)

    async def _run(self, settings: OtlpSettings) -> None:
        thread = ThreadPoolExecutor(1, thread_name_prefix="otlp")
        try:
            send = await asyncio.get_running_loop().run_in_executor(thread, sender, settings)
            due = self._clock.monotonic()
            while True:
                due = max(due + settings.interval_seconds, self._clock.monotonic())
                await self._clock.sleep_until(due)
                began = self._clock.monotonic()
                error = await asyncio.get_running_loop().run_in_executor(thread, send, self._snapshot())
                self._note(error, self._clock.monotonic() - began)
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    def _note(self, error: str, seconds: float) -> None:
        now = self._clock.wall()
        self._health = self._health or Health(SOURCE, self._settings.endpoint or "", now)
        if error:
            self._health.down(now, SourceError("push", error), seconds)
        else:
            self._health.up(now, seconds)


def sender(settings: OtlpSettings) -> Sender:
    """Return a sender for these settings, which returns the error where it cannot send."""
    try:
        convert = importlib.import_module("kvpressure.exposition.otlp")
        http = importlib.import_module("opentelemetry.exporter.otlp.proto.http.metric_exporter")
        compression = importlib.import_module("opentelemetry.exporter.otlp.proto.http").Compression.Gzip
    except ImportError as error:
        reason = f"{NOT_INSTALLED} ({error})"
        return lambda _: reason
    try:
        headers = _headers(settings.headers_file)
    except ConfigError as error:
        problem = str(error.problems[0])
        return lambda _: problem
    library_log = _library_log()
    exporter = http.OTLPMetricExporter(
        endpoint=f"{settings.endpoint}{PATH}",
        certificate_file=None if settings.ca_file is None else str(settings.ca_file),
        headers=headers,
        session=_session(),
        timeout=settings.timeout_seconds,
        compression=compression,
    )
    resource = convert.resource(socket.gethostname())

    def send(snapshot: Snapshot) -> str:
        library_log.flush()
        try:
            result = exporter.export(convert.metrics_data(snapshot, resource))
        except Exception as error:  # noqa: BLE001 - the library's transports raise any exception
            return brief(f"{type(error).__name__}: {error}")
        return "" if result.name == "SUCCESS" else _reason(settings, library_log)

    return send


def _reason(settings: OtlpSettings, library_log: BufferingHandler) -> str:
    """Return the first line that the library logged, of a failed connection only the system's error."""
    why = library_log.buffer[0].getMessage() if library_log.buffer else "it was not taken"
    failed = _SYSTEM_ERROR.search(why)
    return brief(f"{settings.endpoint}{PATH}: {failed[1] if failed else why}")


def _headers(path: Path | None) -> dict[str, str]:
    """Return the headers in the file. Raises ConfigError where it cannot be read."""
    if path is None:
        return {}
    found = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        match = _HEADER.fullmatch(line.strip())
        if match is not None:
            found[match[1]] = match[2]
        elif line.strip():  # not part of the error: it may be a token
            raise ConfigError([Problem(str(path), number, "", "is no `Name: value` of ASCII")])
    return found


def _session() -> Any:
    """Return a session that follows no redirect, which would get the file's headers, such as keys."""
    session = importlib.import_module("requests").Session()
    session.max_redirects = 0
    return session


def _library_log() -> BufferingHandler:
    """Return a handler that keeps what the library logs, which has the reasons of failures, off standard error."""
    logger, handler = logging.getLogger(LIBRARY_LOG), BufferingHandler(MAX_LINES)
    handler.setLevel(logging.WARNING)
    for old in [each for each in logger.handlers if isinstance(each, BufferingHandler)]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.propagate = False
    return handler
