"""Work off the event loop: metrics pages for scrapers, rendered at most once per snapshot and format.

Other work that clients cause is done in a thread of its own, with a short queue that no client can fill alone.
"""

from __future__ import annotations

import asyncio
import gzip
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from aiohttp import web
from prometheus_client.registry import Collector

from kvpressure.exposition import Snapshot, text

T = TypeVar("T")

MAX_QUEUED: Final = 16
"""Jobs that may wait or be under way."""

MAX_QUEUED_PER_CLIENT: Final = 4
"""Jobs that one client may have requested, so that others need not wait long."""

RETRY_SECONDS: Final = 1
"""When a client whose request was rejected may retry."""


class Scrapes:
    """Answers scrapes with the newest snapshot, followed by the families of the `own` collectors.

    Rendering a page of 64 engines takes half as long as a second's polls of them. So a scrape that arrives while its
    format is being rendered waits for that page, which is no older than rendering takes; and only one thread renders,
    as several would take more of the interpreter from the polls.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], *own: Collector) -> None:
        self._snapshot = snapshot
        self._own = own
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics-page")
        self._newest: dict[bool, _Rendering] = {}

    async def answer(self, accept: str, accept_encoding: str) -> web.Response:
        """Return the page in the format and encoding that the headers accept."""
        form = text.negotiate(accept)
        headers = {"Content-Type": form.content_type, "Vary": "Accept, Accept-Encoding"}
        rendering = self._rendering(openmetrics=form.openmetrics)
        if not text.accepts_gzip(accept_encoding):
            return web.Response(body=await _wait(rendering.plain), headers=headers)
        # Queued at once, after the page itself: returning to a busy event loop in between takes time.
        if rendering.compressed is None:
            plain = rendering.plain
            rendering.compressed = self._thread.submit(lambda: gzip.compress(plain.result(), compresslevel=1, mtime=0))
        headers["Content-Encoding"] = "gzip"
        return web.Response(body=await _wait(rendering.compressed), headers=headers)

    def _rendering(self, *, openmetrics: bool) -> _Rendering:
        rendering, snapshot = self._newest.get(openmetrics), self._snapshot()
        if rendering is None or (rendering.plain.done() and rendering.snapshot is not snapshot):
            plain = self._thread.submit(text.render, snapshot, openmetrics=openmetrics, own=self._own)
            rendering = self._newest[openmetrics] = _Rendering(snapshot, plain)
        return rendering


async def _wait(work: Future[bytes]) -> bytes:
    """Return the result; cancelling the wait does not cancel the work, which others may wait for."""
    return await asyncio.shield(asyncio.wrap_future(work))


@dataclass(slots=True)
class _Rendering:
    """A page that is being rendered, or rendered."""

    snapshot: Snapshot
    plain: Future[bytes]
    compressed: Future[bytes] | None = None


class Busy(Exception):  # noqa: N818 - a state, not an error
    """Too many jobs of this kind are waiting."""


class BoundedExecutor:
    """Runs one job after the other; requests for a job that waits or is under way share its result.

    Used from one event loop. Its thread has the usual priority: a thread of lower priority that holds the interpreter's
    lock would make all others wait.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._under_way: dict[Hashable, asyncio.Future[Any]] = {}
        self._clients: Counter[str] = Counter()
        self.refused = 0

    async def run(self, key: Hashable, client: str, work: Callable[[], T]) -> T:
        """Return the result of `work`, or of the queued job with the same `key`. Raises Busy and what `work` raises."""
        future = self._under_way.get(key)
        if future is None:
            if len(self._under_way) >= MAX_QUEUED or self._clients[client] >= MAX_QUEUED_PER_CLIENT:
                self.refused += 1
                raise Busy
            future = asyncio.get_running_loop().run_in_executor(self._executor, work)
            self._under_way[key] = future
            self._clients[client] += 1
            future.add_done_callback(lambda ended: self._ended(key, client, ended))
        # A client that disconnects must not cancel the job of others.
        return cast(T, await asyncio.shield(future))

    def close(self) -> None:
        """Cancel the jobs that wait; do not wait for the one under way."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _ended(self, key: Hashable, client: str, future: asyncio.Future[Any]) -> None:
        del self._under_way[key]
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]
        if not future.cancelled():
            future.exception()  # all clients may have disconnected
