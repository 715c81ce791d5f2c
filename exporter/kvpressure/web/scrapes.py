"""Metrics pages for scrapers: made off the event loop, and at most once per snapshot and format."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from prometheus_client.registry import Collector

from kvpressure.exposition import text
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
        """Return the page in the format and encoding that the headers ask for."""
        form = text.negotiate(accept)
        headers = {"Content-Type": form.content_type, "Vary": "Accept, Accept-Encoding"}
        rendering = self._rendering(openmetrics=form.openmetrics)
        if not text.accepts_gzip(accept_encoding):
            return Answer(await _wait(rendering.plain), headers)
        # Queued at once, behind the page itself: to come back to a busy event loop in between takes its time.
        if rendering.compressed is None:
            plain = rendering.plain
            rendering.compressed = self._thread.submit(lambda: gzip.compress(plain.result(), compresslevel=1, mtime=0))
        return Answer(await _wait(rendering.compressed), headers | {"Content-Encoding": "gzip"})

    def _rendering(self, *, openmetrics: bool) -> _Rendering:
        found, snapshot = self._newest.get(openmetrics), self._snapshot()
        if found is None or (found.plain.done() and found.snapshot is not snapshot):
            plain = self._thread.submit(text.render, snapshot, openmetrics=openmetrics, own=self._own)
            found = self._newest[openmetrics] = _Rendering(snapshot, plain)
        return found


async def _wait(work: Future[bytes]) -> bytes:
    """Return the result; whoever stops waiting does not cancel the work, which others may wait for."""
    return await asyncio.shield(asyncio.wrap_future(work))


@dataclass(slots=True)
class _Rendering:
    """A page under way, or made."""

    snapshot: Snapshot
    plain: Future[bytes]
    compressed: Future[bytes] | None = None
