"""The HTTP server: connections, credentials, pages, and the web configuration's files.

It has an event loop in a thread of its own, so that no client delays a poll of an engine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from kvpressure.config.settings import ConfigError, ListenAddress, Problem, WebSettings
from kvpressure.logs import RateLimitedLogger
from kvpressure.web.accept import Acceptor
from kvpressure.web.config import Refresh, WebGuard
from kvpressure.web.connection import accounted
from kvpressure.web.connections import Connections, max_connections
from kvpressure.web.scrapes import BoundedExecutor
from kvpressure.web.site import Site

if TYPE_CHECKING:
    from kvpressure.daemon.exporter import Daemon

T = TypeVar("T")

REFRESH_SECONDS: Final = 5.0
JOIN_SECONDS: Final = 0.5
"""How long to wait for the thread to end; the process does not wait for it."""
CLOSING_STEPS: Final = 3
_NEVER: Final = 86_400.0
"""For aiohttp's own timeouts, which `Connections` replaces."""

log = structlog.get_logger("kvpressure.web")


class WebServer:
    """Serves one exporter on every address of the settings. Raises ConfigError when the web configuration is bad."""

    def __init__(self, exporter: Daemon, settings: WebSettings) -> None:
        self._settings = settings
        self._guard = WebGuard(settings.config_file)
        self._site = Site(exporter, settings.telemetry_path, self._authorize)
        self._passwords = BoundedExecutor("passwords")
        self.connections = Connections(max_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
        self._runner = web.AppRunner(
            self._site.app(accounted),
            access_log=None,
            logger=_HttpLog(),
            keepalive_timeout=_NEVER,
            # No request has a body to wait for.
            lingering_time=0.0,
            shutdown_timeout=2.0,
        )
        self._acceptor: Acceptor | None = None

    def families(self) -> Mapping[str, object]:
        """Return the counts of connections and refused requests, keyed as the exporter's families. From any thread."""
        refused = {reason: float(count) for reason, count in self.connections.refused.items()}
        refused |= {"passwords": float(self._passwords.refused), "pages": float(self._site.drawing.refused)}
        return {
            "web_connections": float(len(self.connections)),
            "web_refused_total": refused,
            "config_last_reload_successful": float(self._guard.is_current),
        }

    async def start(self) -> list[str]:
        """Bind every address; return their URLs. Raises ConfigError when one cannot be bound."""
        await self._runner.setup()
        make = cast(Callable[[], asyncio.Protocol], self._runner.server)
        self._acceptor = Acceptor(self.connections, make, self._guard.context)
        try:
            return [await self._bind(self._acceptor, address) for address in self._settings.listen_address]
        except ConfigError:
            await self.close()
            raise

    async def follow(self) -> None:
        """Put changes of certificates and users in force until cancelled; an invalid change is logged once."""
        logged: list[str] = []
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                refresh = await asyncio.to_thread(self._guard.refresh)
            except ConfigError as error:
                problems = [str(problem) for problem in error.problems]
                for problem in problems if problems != logged else ():
                    log.error("new web configuration refused, the old one stays in force", problem=problem)
                logged = problems
                continue
            if refresh is Refresh.UNCHANGED:
                continue
            logged = []
            if self._acceptor is not None:
                self._acceptor.context = self._guard.context
            if refresh is Refresh.LISTENER:
                self.connections.retire()
            log.info("web configuration reloaded")

    async def close(self) -> None:
        """Stop listening and close connections, those that wait for a response after it, within 2 s."""
        if self._acceptor is not None:
            self._acceptor.close()
        self.connections.retire()
        await self._runner.cleanup()
        self.connections.close()
        self._passwords.close()

    async def _authorize(self, header: str | None, client: str) -> bool:
        auth = self._guard.auth
        known = auth.known(header)
        if known is not None:
            return known
        return await self._passwords.run((id(auth), auth.fingerprint(header)), client, lambda: auth.check(header))

    async def _bind(self, acceptor: Acceptor, address: ListenAddress) -> str:
        try:
            port = await acceptor.listen(address)
        except OSError as error:
            # Without the address again, which asyncio and socket append to the system's text.
            code = error.errno or 0
            why = os.strerror(code) if code > 0 else error.strerror or error
            sentence = f"cannot listen on this address: {why}; choose another with --web.listen-address"
            raise ConfigError([Problem(str(address), None, "", sentence)]) from error
        host = address.host or "localhost"
        return f"{'https' if self._guard.context else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


class Listener:
    """Serves one exporter on every address of the settings, on an event loop in a thread. Used from another loop.

    That thread reads from the exporter: snapshots never change, and its other methods are safe from any thread.
    """

    def __init__(self, exporter: Daemon, settings: WebSettings) -> None:
        self._exporter = exporter
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._faulty)
        self._logger = RateLimitedLogger(log.error, self._loop.time)
        self._server: WebServer | None = None
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    async def start(self) -> list[str]:
        """Bind every address; return the URLs. Raises ConfigError, also for an invalid web configuration."""
        self._thread.start()
        try:
            return await self._there(self._start())
        except BaseException:
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise

    async def follow(self) -> None:
        """Put changes of certificates and users in force until cancelled."""
        if self._server is not None:
            await self._there(self._server.follow())

    def families(self) -> Mapping[str, object]:
        """Return the families of the exporter's own server."""
        return {} if self._server is None else self._server.families()

    async def close(self) -> None:
        """Stop listening and end connections."""
        if self._server is not None:
            await self._there(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, JOIN_SECONDS)

    async def _start(self) -> list[str]:
        self._server = WebServer(self._exporter, self._settings)
        return await self._server.start()

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the server's loop; cancelling this cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _faulty(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception that no handler expects, rate-limited: a client may cause it."""
        error = context.get("exception")
        self._logger("the server met an error", what=context.get("message"), error=repr(error), exc_info=error)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._end())
        finally:
            self._loop.close()

    async def _end(self) -> None:
        """Cancel all tasks, and let dropped connections close their sockets, which takes some steps of the loop."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(CLOSING_STEPS):
            await asyncio.sleep(0)


class _HttpLog(logging.Logger):
    """The logger of aiohttp, rate-limited, without invalid requests: any client can send many."""

    def __init__(self) -> None:
        super().__init__("kvpressure.web.http", logging.ERROR)
        self._logger = RateLimitedLogger(log.error, asyncio.get_running_loop().time)

    def handle(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            self._logger("a request could not be answered", error=repr(error), exc_info=error)
