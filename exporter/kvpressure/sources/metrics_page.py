"""Reads a metrics page of another program: whole, bounded, beside the event loop and on its source's budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from yarl import URL

from kvpressure.config.settings.polling import ClientSettings
from kvpressure.model.errors import SourceError, TimedOutError
from kvpressure.net.budget import Share
from kvpressure.net.credentials import Authorization
from kvpressure.net.http import HttpClient, shown
from kvpressure.net.schedule import Clock
from kvpressure.net.threads import in_own_thread
from kvpressure.promtext.lines import Series, Steps, require_end
from kvpressure.promtext.scanner import PageScanner

T = TypeVar("T")

MAX_BYTES: Final = 4 << 20
"""Of histograms of dozens of models and tenants, or every field of eight GPUs: 300 KiB."""


class MetricsPage(Generic[T]):
    """Pages at one address, of which the series with these `names` are read; `aclose` it.

    `made` computes the result from series, values and the time of the page (unix seconds); it may raise SourceError.
    """

    def __init__(
        self,
        url: URL,
        settings: ClientSettings,
        names: frozenset[bytes],
        made: Callable[[Sequence[Series], Sequence[float], float], T],
        share: Share,
        clock: Clock,
    ) -> None:
        authorization = Authorization(settings.bearer_token_file, settings.basic_auth)
        self._client = HttpClient(clock, tls=settings.tls, authorization=authorization, cap_bytes=MAX_BYTES)
        self._url, self._made, self._share = url, made, share
        self._scanner = PageScanner[tuple[Series, ...]](names, tuple)
        self._job: asyncio.Future[T] | None = None

    async def read(self, timeout_seconds: float) -> tuple[float, T]:
        """Return when the page came, and what was made of it. Raises SourceError, which names the address."""
        answer = await self._client.get(self._url, timeout_seconds)
        if self._job is not None and not self._job.done():  # its deadline ended the waiting, not the thread
            raise TimedOutError(f"{shown(self._url)}: the page before is still being read")
        steps = self._steps(answer.body, answer.t)
        self._job = in_own_thread(lambda: self._share.work(steps), "metrics-page")
        try:
            return answer.t, await asyncio.shield(self._job)
        except SourceError as error:
            raise error.saying(f"{shown(self._url)}: {error}") from error

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    def _steps(self, body: bytes, t: float) -> Steps[T]:
        series, values = yield from self._scanner.steps(body)
        if series:
            require_end(body)
        once = dict(zip(series, values, strict=True))  # a series that is there twice is no second one
        yield
        return self._made(tuple(once), tuple(once.values()), t)
