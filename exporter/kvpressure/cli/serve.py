"""Runs a daemon and its HTTP server until a signal ends them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable

import click
import structlog
from aiohttp import web

from kvpressure.daemon import Daemon
from kvpressure.fleet import cancel
from kvpressure.server import Site
from kvpressure.settings import ConfigError, ListenAddress
from kvpressure.webconfig import WebConfig, load_web_config

log = structlog.get_logger("kvpressure")

KEEPALIVE_SECONDS = 75.0


async def serve(
    make: Callable[[], Daemon], ready: Callable[[Daemon, list[str]], Awaitable[None]] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT. `ready` runs beside it once the server listens on the given URLs.

    Ends the process with exit code 2 when an address cannot be bound or the web configuration is wrong.
    """
    daemon = make()
    stop = _handle_signals(daemon)
    runner, urls = await _listen(daemon)
    tasks = [asyncio.create_task(daemon.run(), name="daemon")]
    if ready is not None:
        tasks.append(asyncio.create_task(_until_done(ready(daemon, urls)), name="ready"))
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        done, _ = await asyncio.wait([tasks[0], stopping], return_when=asyncio.FIRST_COMPLETED)
        if tasks[0] in done:
            tasks[0].result()
    finally:
        log.info("stopping")
        await cancel([*tasks, stopping])  # type: ignore[list-item]
        await runner.cleanup()


async def _until_done(work: Awaitable[None]) -> None:
    await work


def _handle_signals(daemon: Daemon) -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for ending in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(ending, stop.set)
    loop.add_signal_handler(signal.SIGHUP, daemon.request_reload)
    loop.add_signal_handler(signal.SIGUSR1, daemon.detach_gpus)
    return stop


async def _listen(daemon: Daemon) -> tuple[web.AppRunner, list[str]]:
    settings = daemon.settings.web
    try:
        config = load_web_config(settings.config_file) if settings.config_file else WebConfig()
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        sys.exit(2)
    site = Site(daemon, settings.telemetry_path, config.authorize)
    runner = web.AppRunner(site.app(), access_log=None, keepalive_timeout=KEEPALIVE_SECONDS, shutdown_timeout=2.0)
    await runner.setup()
    urls = [await _bind(runner, address, config) for address in settings.listen_address]
    log.info("listening", urls=" ".join(urls))
    return runner, urls


async def _bind(runner: web.AppRunner, address: ListenAddress, config: WebConfig) -> str:
    context = config.ssl_context()
    try:
        await web.TCPSite(runner, address.host or None, address.port, ssl_context=context).start()
    except OSError as error:
        click.echo(
            f"cannot listen on {address}: {error.strerror or error}; is it in use? "
            "Choose another with --web.listen-address",
            err=True,
        )
        sys.exit(2)
    host = address.host or "localhost"
    port = next(iter(runner.addresses[-1:]), (host, address.port))[1]
    return f"{'https' if context else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
