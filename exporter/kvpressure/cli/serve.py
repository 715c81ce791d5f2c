"""Runs a daemon and its HTTP server until a signal ends them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from kvpressure.cli.ending import end, stop_signal
from kvpressure.daemon.exporter import Daemon
from kvpressure.web.listener import Listener

log = structlog.get_logger("kvpressure")

Beside = Callable[[Daemon, list[str]], Coroutine[None, None, None]]
"""Runs beside the daemon once its server listens on the given URLs."""


async def serve(make: Callable[[], Daemon], beside: Beside | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError when the server cannot be started."""
    with stop_signal() as stop:
        daemon = make()
        listener = Listener(daemon, daemon.settings.web)
        urls = await listener.start()
        daemon.register_collector(listener.families)
        log.info("listening", urls=" ".join(urls))
        work: dict[str, Coroutine[Any, Any, Any]] = {
            "daemon": daemon.run(),
            "web configuration": listener.follow(),
            "signal": stop.wait(),
        }
        if beside is not None:
            work["beside"] = beside(daemon, urls)
        tasks = {asyncio.create_task(coroutine, name=name) for name, coroutine in work.items()}
        _handle_signals(daemon)
        try:
            await _until(stop, tasks)
        finally:
            log.info("stopping")
            if left := await end(tasks, listener.close()):
                log.warning("threads still running at exit", what=", ".join(left))


async def _until(stop: asyncio.Event, tasks: set[asyncio.Task[Any]]) -> None:
    """Wait for the signal. Raises what a task fails with."""
    while not stop.is_set():
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
            tasks.remove(task)


def _handle_signals(daemon: Daemon) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, daemon.request_reload)
    loop.add_signal_handler(signal.SIGUSR1, daemon.detach_gpus)
