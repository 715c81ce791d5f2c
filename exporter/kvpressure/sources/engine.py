"""Polls the metrics page of one engine.

Asks for the few series each poll needs (`name[]`) where the server honours it, for the whole page where it does not;
histograms and the cache configuration come along every few polls. One task, one connection and one deadline per
target: a slow answer delays only itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from yarl import URL

from kvpressure.runtimes.reader import PageError
from kvpressure.samples import EnginePage, SourceHealth
from kvpressure.sources.base import Guard, SourceError, brief
from kvpressure.sources.credentials import Authorization, BasicAuth, FileName, TlsOptions
from kvpressure.sources.http import LARGEST_BODY_BYTES, HttpClient, shown
from kvpressure.sources.name_filter import FilterSetting, Mode, NameFilter, PageUrls, page_urls, restarted
from kvpressure.sources.schedule import Clock, SystemClock

SOURCE: Final = "engine"
PROBE_SHARE: Final = 0.5


class EngineTarget(Protocol):
    """One page to poll. `name` is how people know it, `url` its base (`http://host:8000`), `path` that of the page."""

    @property
    def name(self) -> str: ...  # noqa: D102 (the class says what they are)
    @property
    def url(self) -> str: ...  # noqa: D102
    @property
    def path(self) -> str: ...  # noqa: D102
    @property
    def tls(self) -> TlsOptions | None: ...  # noqa: D102
    @property
    def bearer_token_file(self) -> FileName: ...  # noqa: D102
    @property
    def basic_auth(self) -> BasicAuth | None: ...  # noqa: D102


class PageReader(Protocol):
    """A runtime's reader; one per target, it may remember the page's layout between polls."""

    def read(self, page: bytes, t: float) -> EnginePage:
        """The samples of a page; raises `runtimes.reader.PageError`."""


@dataclass(frozen=True, slots=True)
class PollNames:
    """The sample names to ask for: at each poll, and (histograms and cache configuration too) every few polls."""

    poll: tuple[str, ...]
    full: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PollOptions:
    """How to poll; the fields are those of the `poll` settings.

    `timeout_seconds` is the deadline of one poll, the fallback to the whole page included; None is 0.8 intervals, at
    most 10 s.
    """

    interval_seconds: float = 1.0
    timeout_seconds: float | None = None
    histogram_interval_seconds: float = 6.0
    max_page_bytes: int = LARGEST_BODY_BYTES
    filter: FilterSetting = "auto"


@dataclass(frozen=True, slots=True)
class EngineSourceStats:
    """What one target's polling has cost since it began; `bytes_received` counts bodies, failed ones too.

    `late` and `missed` are those of `base.PollCounts`; `filter_mode` says whether the server honours `name[]`.
    """

    polls: int
    late: int
    missed: int
    requests: int
    bytes_received: int
    filter_mode: Mode


class EngineSource:
    """One target: `run` it in a task of its own, `aclose` it when the task has ended."""

    def __init__(
        self,
        target: EngineTarget,
        reader: PageReader,
        names: PollNames,
        options: PollOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        options = options or PollOptions()
        self.target = target
        self._reader = reader
        self._names = names
        self._clock: Clock = clock or SystemClock()
        self._client = HttpClient(
            self._clock,
            tls=target.tls,
            authorization=Authorization(target.bearer_token_file, target.basic_auth),
            cap_bytes=options.max_page_bytes,
        )
        self._guard: Guard[EnginePage] = Guard(
            SOURCE,
            target.name,
            interval_seconds=options.interval_seconds,
            deadline_seconds=options.timeout_seconds,
            clock=self._clock,
            on_timeout=self._timed_out,
        )
        self._filter = NameFilter(options.filter)
        self._histograms = _Rarely(options.histogram_interval_seconds, options.interval_seconds)
        self._urls: PageUrls | None = None
        self._last: EnginePage | None = None

    async def poll(self) -> EnginePage | None:
        """One poll, None when it failed (`health` then says why); raises nothing but cancellation."""
        return await self._guard.attempt(self._read)

    async def run(self, on_page: Callable[[EnginePage], None]) -> None:
        """Polls at each tick until cancelled and hands every page over."""
        try:
            await self._guard.run(self._read, on_page)
        finally:
            await self.aclose()

    def health(self) -> SourceHealth:
        """How the last poll went."""
        return self._guard.health()

    def stats(self) -> EngineSourceStats:
        """Counts since the source was made."""
        counts, client = self._guard.counts, self._client
        return EngineSourceStats(
            counts.polls, counts.late, counts.missed, client.requests, client.bytes_received, self._filter.mode
        )

    async def aclose(self) -> None:
        """Closes the connection."""
        await self._client.aclose()

    async def _read(self) -> EnginePage:
        if not self._guard.health().up:
            self._filter.may_have_changed()
        now = self._clock.monotonic()
        full = self._histograms.due(now)
        page = await self._page(full, now)
        if full:
            self._histograms.done(now)
        if restarted(self._last, page):
            self._filter.may_have_changed()
            self._histograms.again()
        self._last = page
        return page

    async def _page(self, full: bool, now: float) -> EnginePage:
        urls = self._addresses()
        if not self._filter.asks(now):
            return await self._fetch(urls.plain)
        page, error = await self._filtered(urls.full if full else urls.poll)
        if page is not None:
            self._filter.honoured()
            return page
        page = await self._fetch(urls.plain)
        self._filter.ignored(now, error)
        return page

    async def _filtered(self, url: URL) -> tuple[EnginePage | None, SourceError | None]:
        """The page of the filtered address, or None when the plain one has to be asked, with the reason if any."""
        seconds = PROBE_SHARE * self._guard.deadline_seconds if self._filter.probing() else None
        try:
            async with asyncio.timeout(seconds):
                page = await self._fetch(url)
        except TimeoutError:
            return None, self._client.timed_out(shown(url), seconds or 0.0)
        except SourceError as error:
            if not self._filter.falls_back(error):
                raise
            return None, error
        return (page if page.engines or self._filter.insists else None), None

    async def _fetch(self, url: URL) -> EnginePage:
        answer = await self._client.get(url)
        where = shown(url)
        try:
            page = self._reader.read(answer.body, answer.t)
        except PageError as error:
            raise SourceError(error.reason, f"{where}: {brief(error)}") from error
        if not answer.body.endswith(b"\n"):
            # The text format ends each line, so a number at the very end may have lost digits.
            raise SourceError("truncated", f"{where} answered a page whose last line is cut short")
        return page

    def _addresses(self) -> PageUrls:
        if self._urls is None:
            self._urls = page_urls(self.target.url, self.target.path, self._names.poll, self._names.full)
        return self._urls

    def _timed_out(self) -> SourceError:
        return self._client.timed_out(shown(self._addresses().plain), self._guard.deadline_seconds)


class _Rarely:
    """When something slower than the polls is due: with the first, and with the poll nearest to each interval."""

    def __init__(self, every_seconds: float, poll_seconds: float) -> None:
        self._every_seconds = every_seconds
        self._slack_seconds = poll_seconds / 2
        self._next: float | None = None

    def due(self, now: float) -> bool:
        return self._next is None or now >= self._next - self._slack_seconds

    def done(self, now: float) -> None:
        self._next = now + self._every_seconds

    def again(self) -> None:
        self._next = None
