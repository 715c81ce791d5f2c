"""Runs a daemon and its HTTP server until a signal ends them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine

import structlog

from kvpressure.daemon import Daemon
from kvpressure.fleet import cancel
from kvpressure.listener import Listener

log = structlog.get_logger("kvpressure")

Beside = Callable[[Daemon, list[str]], Coroutine[None, None, None]]
"""Runs beside the daemon once its server listens on the given URLs."""


async def serve(make: Callable[[], Daemon], beside: Beside | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError when the server cannot be started."""
    daemon = make()
    listener = Listener(daemon, daemon.settings.web)
    urls = await listener.start()
    log.info("listening", urls=" ".join(urls))
    stop = _handle_signals(daemon)
    work = [daemon.run(), listener.follow(), stop.wait()]
    if beside is not None:
        work.append(beside(daemon, urls))
    tasks: list[asyncio.Task[None]] = [asyncio.create_task(_nothing(each)) for each in work]
    try:
        while not stop.is_set():
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                tasks.remove(task)
    finally:
        log.info("stopping")
        await cancel(tasks)
        await listener.close()


async def _nothing(work: Coroutine[None, None, object]) -> None:
    await work


def _handle_signals(daemon: Daemon) -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for ending in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(ending, stop.set)
    loop.add_signal_handler(signal.SIGHUP, daemon.request_reload)
    loop.add_signal_handler(signal.SIGUSR1, daemon.detach_gpus)
    return stop
