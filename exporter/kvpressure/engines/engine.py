"""Polls the metrics page of one engine.

Requests the few series that each poll needs (`name[]`) where the server honours it, else the whole page; histograms and
the cache configuration every few polls. One task, one connection and one request at a time per target: a slow response
delays no other target, and an engine in trouble has at most one request to answer.

Long pages of all targets are parsed by one thread: those with a known layout at once, the others one after the other. A
page with a known layout takes milliseconds and one step. One with a new layout takes up to seconds and, meanwhile,
twenty times its size in memory: the former never wait for the latter, and one of the latter is under way at a time.
More threads would only take more of the interpreter from the event loop.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import Any, Final, TypeVar

from yarl import URL

from kvpressure.config.settings import PollSettings
from kvpressure.config.target import Target
from kvpressure.engines.name_filter import Mode, NameFilter, PageUrls, page_urls, restarted
from kvpressure.engines.reader import PageError, PageReader
from kvpressure.model.errors import SourceError, TooLargeError, TruncatedError
from kvpressure.model.record import record
from kvpressure.model.samples import ENGINE_SOURCE, EnginePage, SourceHealth
from kvpressure.net.credentials import Authorization
from kvpressure.net.guard import Guard, PollCounts
from kvpressure.net.http import Answer, HttpClient, shown
from kvpressure.net.schedule import Clock, SystemClock
from kvpressure.printable import brief
from kvpressure.promtext.lines import Steps

T = TypeVar("T")

_Job = tuple[Steps[Any], Callable[[Any, BaseException | None], None]]


class LongPages:
    """A daemon thread that parses long pages, started with the first one."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, steps: Steps[T]) -> asyncio.Future[T]:
        """Return the future of the steps' result; they also run to their end when it is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((steps, partial(_settle, loop, future)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="long-pages", daemon=True)
            self._thread.start()
        return future

    def _serve(self) -> None:
        learning: deque[_Job] = deque()
        while True:
            while not learning or not self._jobs.empty():
                job = self._jobs.get()
                if not _step(job):
                    learning.append(job)
            if _step(learning[0]):
                learning.popleft()


def _step(job: _Job) -> bool:
    """Take one step of a page; return whether it was the last."""
    steps, settle = job
    try:
        next(steps)
    except StopIteration as done:
        settle(done.value, None)
    except Exception as error:  # noqa: BLE001 - raised where the future is awaited
        settle(None, error)
    else:
        time.sleep(0)  # let the event loop run
        return False
    return True


def _settle(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    with suppress(RuntimeError):  # the loop is closed, and the future no longer awaited
        loop.call_soon_threadsafe(settle)


PARSE_SECONDS: Final = 30.0
"""How long a poll may wait for its page to be parsed, beside its requests: long pages are parsed one by one."""

INLINE_BYTES: Final = 256 * 1024
"""Four ranks' full pages; parsing this much takes a few milliseconds at most."""

_long_pages: Final = LongPages()


@record
class PollNames:
    """The sample names to request: `poll` at each poll, `full` (with histograms and cache configuration) every few.

    Once a page has shown its runtime, the names of that runtime in `own` are requested, where it has any.
    """

    poll: tuple[str, ...]
    full: tuple[str, ...]
    own: Mapping[str, PollNames] = field(default_factory=dict)


class EngineSource:
    """Polls one target: `run` it in a task of its own, `aclose` it when the task has ended.

    A request's deadline does not depend on the interval: ticks that pass meanwhile are skipped and counted. A poll
    sends a second request only after the response to the first.
    """

    def __init__(
        self,
        target: Target,
        reader: PageReader,
        names: PollNames,
        settings: PollSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        settings = settings or PollSettings()
        self.target = target
        self._reader = reader
        self._names = names
        self._clock: Clock = clock or SystemClock()
        self._timeout_seconds = settings.timeout_seconds
        authorization = Authorization(target.bearer_token_file, target.basic_auth)
        self._client = HttpClient(
            self._clock, tls=target.tls, authorization=authorization, cap_bytes=settings.max_page_bytes
        )
        self._reading: asyncio.Future[EnginePage] | None = None
        self._guard: Guard[EnginePage] = Guard(
            ENGINE_SOURCE,
            target.name,
            interval_seconds=settings.interval_seconds,
            deadline_seconds=2 * settings.timeout_seconds + PARSE_SECONDS,
            clock=self._clock,
        )
        self._filter = NameFilter(settings.filter)
        self._full_every_seconds = settings.histogram_interval_seconds
        self._slack_seconds = settings.interval_seconds / 2
        self._next_full = -math.inf
        """When histograms are requested too: with the first poll, and the nearest to each interval."""
        self._urls: PageUrls | None = None
        self._last: EnginePage | None = None
        self._runtime = ""

    async def poll(self) -> EnginePage | None:
        """Return the page of one poll, None when it failed (`health` says why); raises nothing but cancellation."""
        return await self._guard.attempt(self._read)

    async def run(self, on_page: Callable[[EnginePage], None]) -> None:
        """Poll at each tick until cancelled; call `on_page` with every page."""
        try:
            await self._guard.run(self._read, on_page)
        finally:
            await self.aclose()

    def health(self) -> SourceHealth:
        """Return the outcome of the last poll."""
        return self._guard.health()

    @property
    def counts(self) -> PollCounts:
        """Its polls since it was made."""
        return self._guard.counts

    @property
    def bytes_received(self) -> int:
        """Bytes of all bodies, also of failed responses."""
        return self._client.bytes_received

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    async def _read(self) -> EnginePage:
        if not self._guard.up:
            self._filter.was_down()
        now = self._clock.monotonic()
        full = now >= self._next_full - self._slack_seconds
        page = await self._page(full, now)
        if full:
            self._next_full = now + self._full_every_seconds
        if restarted(self._last, page):
            self._filter.may_have_changed()
            self._next_full = -math.inf
        self._last = page
        if page.runtime != self._runtime:
            self._runtime, self._urls = page.runtime, None
        return page

    async def _page(self, full: bool, now: float) -> EnginePage:
        if self._urls is None:
            names = self._names.own.get(self._runtime, self._names)
            self._urls = page_urls(self.target.url, self.target.path, names.poll, names.full)
        urls = self._urls
        if not self._filter.is_used(now):
            return await self._plain(urls)
        page_by_name = await self._try(urls.full if full else urls.poll)
        if page_by_name is not None:
            self._filter.mode = Mode.HONOURED
            return page_by_name
        page = await self._plain(urls)
        self._filter.ignored(now)
        return page

    async def _plain(self, urls: PageUrls) -> EnginePage:
        page = await self._fetch(urls.plain)
        self._filter.plain_answered()
        return page

    async def _try(self, url: URL) -> EnginePage | None:
        """Return the filtered page, None to request the plain one; raises where that does not help."""
        try:
            page = await self._fetch(url)
        except SourceError as error:
            if not self._filter.falls_back(error):
                raise
            return None
        return page if page.engines or self._filter.insists else None

    async def _fetch(self, url: URL) -> EnginePage:
        answer = await self._client.get(url, self._timeout_seconds)
        where = shown(url)
        try:
            page = await self._parse(answer)
        except PageError as error:
            raise error.saying(f"{where}: {brief(error)}") from error
        if not answer.body.endswith(b"\n"):
            # Every line of the text format ends with a newline, so a number at the end may be cut.
            raise TruncatedError(f"{where} answered a page whose last line is cut short")
        return page

    async def _parse(self, answer: Answer) -> EnginePage:
        """Parse a page: a short one at once, a long one in a thread, so that it delays no other target.

        The reader keeps a state between pages, so it parses one at a time.
        """
        if self._reading is not None and not self._reading.done():
            raise TooLargeError(f"{self.target.name}: the page before is still being read")
        if len(answer.body) <= INLINE_BYTES:
            return self._reader.read(answer.body, answer.t)
        self._reading = _long_pages.start(self._reader.steps(answer.body, answer.t))
        return await asyncio.shield(self._reading)
