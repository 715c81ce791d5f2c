"""The HTTP server in a thread of its own, so that nothing its clients do makes a poll of an engine late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import structlog

from kvpressure.config.settings import WebSettings
from kvpressure.logs import RateLimitedLogger
from kvpressure.web.server import WebServer
from kvpressure.web.site import Exporter

T = TypeVar("T")

LAST_WORDS_SECONDS = 0.5
"""What the thread may take to end: a second signal or the process's end does not wait for it."""

LAST_TURNS = 3

log = structlog.get_logger("kvpressure.web")


class Listener:
    """Serves one exporter on every address of the settings, on an event loop in a thread. Used from another loop.

    The exporter is asked from that thread: a snapshot never changes, and the rest may be asked from any.
    """

    def __init__(self, exporter: Exporter, settings: WebSettings) -> None:
        self._exporter = exporter
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_Faults(self._loop))
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


class _Faults:
    """Tells what no handler expected, seldom: it may be somebody's doing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._logger = RateLimitedLogger(log.error, loop.time)

    def __call__(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._logger("the server met an error", what=context.get("message"), error=repr(error), exc_info=error)
