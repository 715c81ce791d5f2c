"""Metrics pages for scrapers: made off the event loop, and at most once per snapshot and format."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from prometheus_client.registry import Collector

from kvpressure.exposition import text
from kvpressure.exposition.negotiation import accepts_gzip, negotiate
from kvpressure.exposition.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Answer:
    """A page as it is sent."""

    body: bytes
    headers: dict[str, str]


class Scrapes:
    """Answers scrapes with the newest snapshot, `own` collectors' families behind it.

    A page of 64 engines takes the library half as long as a second's polls of them. So a scrape that arrives while its
    format is being rendered waits for that page, which is no older than rendering takes; and one thread renders, as
    several would only take more of the interpreter from the polls.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], *own: Collector) -> None:
        self._snapshot = snapshot
        self._own = own
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics-page")
        self._newest: dict[bool, _Rendering] = {}

    async def answer(self, accept: str, accept_encoding: str) -> Answer:
        """The page in the format and encoding that the headers ask for."""
        form = negotiate(accept)
        headers = {"Content-Type": form.content_type, "Vary": "Accept, Accept-Encoding"}
        rendering = self._rendering(openmetrics=form.openmetrics)
        if not accepts_gzip(accept_encoding):
            return Answer(await asyncio.shield(rendering.plain), headers)
        return Answer(await asyncio.shield(self._compressed(rendering)), headers | {"Content-Encoding": "gzip"})

    def _rendering(self, *, openmetrics: bool) -> _Rendering:
        found, snapshot = self._newest.get(openmetrics), self._snapshot()
        if found is None or (found.plain.done() and found.snapshot is not snapshot):
            work = partial(text.render, snapshot, openmetrics=openmetrics, own=self._own)
            plain = asyncio.get_running_loop().run_in_executor(self._thread, work)
            found = self._newest[openmetrics] = _Rendering(snapshot, plain)
        return found

    def _compressed(self, rendering: _Rendering) -> asyncio.Future[bytes]:
        if rendering.compressed is None:
            rendering.compressed = asyncio.ensure_future(self._compress(rendering.plain))
        return rendering.compressed

    async def _compress(self, plain: asyncio.Future[bytes]) -> bytes:
        work = partial(gzip.compress, await asyncio.shield(plain), compresslevel=1, mtime=0)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


@dataclass(slots=True)
class _Rendering:
    """A page under way, or made; the futures are shared, so nobody's own end may cancel them."""

    snapshot: Snapshot
    plain: asyncio.Future[bytes]
    compressed: asyncio.Future[bytes] | None = field(default=None)
