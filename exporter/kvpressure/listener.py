"""The sockets of the HTTP server: binds them, checks credentials, follows the web configuration's files."""

from __future__ import annotations

import asyncio

import structlog
from aiohttp import web

from kvpressure.config.settings import ConfigError, ListenAddress, Problem, WebSettings
from kvpressure.server import Exporter, Site
from kvpressure.webauth import Refresh, WebGuard

KEEPALIVE_SECONDS = 75.0
REFRESH_SECONDS = 5.0

log = structlog.get_logger("kvpressure.server")


class Listener:
    """Serves one exporter on every address of the settings. Raises ConfigError when the web configuration is bad."""

    def __init__(self, exporter: Exporter, settings: WebSettings) -> None:
        self._settings = settings
        self._guard = WebGuard(settings.config_file)
        site = Site(exporter, settings.telemetry_path, self._authorize)
        self._runner = web.AppRunner(
            site.app(), access_log=None, keepalive_timeout=KEEPALIVE_SECONDS, shutdown_timeout=2.0
        )
        self._sites: list[web.TCPSite] = []

    async def start(self) -> list[str]:
        """Bind every address; gives the URLs to reach them. Raises ConfigError when one cannot be bound."""
        await self._runner.setup()
        try:
            return [await self._bind(address) for address in self._settings.listen_address]
        except ConfigError:
            await self.close()
            raise

    async def follow(self) -> None:
        """Take in changes of certificates and users until cancelled; a bad change keeps what is in force."""
        told: list[str] = []
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                refresh = await asyncio.to_thread(self._guard.refresh)
            except ConfigError as error:
                problems = [str(problem) for problem in error.problems]
                if problems != told:
                    for problem in problems:
                        log.error("new web configuration refused, the old one stays in force", problem=problem)
                told = problems
                continue
            if refresh is not Refresh.UNCHANGED:
                told = []
            if refresh is Refresh.LISTENER:
                await self._rebind()
            if refresh is not Refresh.UNCHANGED:
                log.info("web configuration reloaded")

    async def close(self) -> None:
        """Stop listening and end connections."""
        await self._runner.cleanup()

    async def _authorize(self, header: str | None) -> bool:
        known = self._guard.auth.known(header)
        return await asyncio.to_thread(self._guard.auth.check, header) if known is None else known

    async def _rebind(self) -> None:
        for site in self._sites:
            await site.stop()
        self._sites.clear()
        for address in self._settings.listen_address:
            await self._bind(address)

    async def _bind(self, address: ListenAddress) -> str:
        context = self._guard.context
        site = web.TCPSite(self._runner, address.host or None, address.port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            sentence = f"cannot be listened on: {error.strerror or error}; choose another with --web.listen-address"
            raise ConfigError([Problem(str(address), None, "", sentence)]) from error
        self._sites.append(site)
        host = address.host or "localhost"
        port = self._runner.addresses[-1][1]
        return f"{'https' if context else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
