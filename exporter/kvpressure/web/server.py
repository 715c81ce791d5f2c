"""The HTTP server: connections, credentials, pages, and the web configuration's files.

It has an event loop in a thread of its own, so that nothing its clients do makes a poll of an engine late.
"""

from __future__ import annotations

import asyncio
import logging
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
LAST_WORDS_SECONDS: Final = 0.5
"""What the thread may take to end: a second signal or the process's end does not wait for it."""
LAST_TURNS: Final = 3
_NEVER: Final = 86_400.0
"""For aiohttp's own time limits, which are ours to keep."""

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
            # A body that has not come with its head is not waited for: nobody has one to send.
            lingering_time=0.0,
            shutdown_timeout=2.0,
        )
        self._acceptor: Acceptor | None = None

    def families(self) -> Mapping[str, object]:
        """How many are connected and how many were refused, keyed as the exporter's own families. From any thread."""
        refused = {reason: float(count) for reason, count in self.connections.refused.items()}
        refused |= {"passwords": float(self._passwords.refused), "pages": float(self._site.drawing.refused)}
        return {"web_connections": float(len(self.connections)), "web_refused_total": refused}

    async def start(self) -> list[str]:
        """Bind every address; gives the URLs to reach them. Raises ConfigError when one cannot be bound."""
        await self._runner.setup()
        make = cast(Callable[[], asyncio.Protocol], self._runner.server)
        self._acceptor = Acceptor(self.connections, make, self._guard.context)
        try:
            return [await self._bind(self._acceptor, address) for address in self._settings.listen_address]
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
                for problem in problems if problems != told else ():
                    log.error("new web configuration refused, the old one stays in force", problem=problem)
                told = problems
                continue
            if refresh is Refresh.UNCHANGED:
                continue
            told = []
            if refresh is Refresh.LISTENER and self._acceptor is not None:
                self._acceptor.context = self._guard.context
                self.connections.retire()
            log.info("web configuration reloaded")

    async def close(self) -> None:
        """Stop listening and end connections: those being answered after their answer, if it leaves within 2 s."""
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
            sentence = f"cannot be listened on: {error.strerror or error}; choose another with --web.listen-address"
            raise ConfigError([Problem(str(address), None, "", sentence)]) from error
        host = address.host or "localhost"
        return f"{'https' if self._guard.context else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


class Listener:
    """Serves one exporter on every address of the settings, on an event loop in a thread. Used from another loop.

    The exporter is asked from that thread: a snapshot never changes, and the rest may be asked from any.
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
        """Bind every address; gives the URLs. Raises ConfigError for a bad one, or a bad web configuration."""
        self._thread.start()
        try:
            return await self._there(self._start())
        except BaseException:
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise

    async def follow(self) -> None:
        """Take in changes of certificates and users until cancelled; a bad change keeps what is in force."""
        if self._server is not None:
            await self._there(self._server.follow())

    def families(self) -> Mapping[str, object]:
        """Return what the exporter tells of its own server."""
        return {} if self._server is None else self._server.families()

    async def close(self) -> None:
        """Stop listening and end connections."""
        if self._server is not None:
            await self._there(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, LAST_WORDS_SECONDS)

    async def _start(self) -> list[str]:
        self._server = WebServer(self._exporter, self._settings)
        return await self._server.start()

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it on the server's loop; cancelling this cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _faulty(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tell what no handler expected, seldom: it may be somebody's doing."""
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
        """Let connections that were hung up on close their sockets: they do it in a later turn of the loop."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)


class _HttpLog(logging.Logger):
    """For aiohttp's lines: what is wrong with a request is its client's fault, and anybody can send as many."""

    def __init__(self) -> None:
        super().__init__("kvpressure.web.http", logging.ERROR)
        self._logger = RateLimitedLogger(log.error, asyncio.get_running_loop().time)

    def handle(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            self._logger("a request could not be answered", error=repr(error), exc_info=error)
