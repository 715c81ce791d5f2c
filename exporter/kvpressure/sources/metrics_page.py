"""Reads a metrics page of another program: whole, bounded, and a long one without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from yarl import URL

from kvpressure.model.record import SourceError
from kvpressure.net.http import HttpClient, shown
from kvpressure.promtext.lines import PageError, Series, require_end
from kvpressure.promtext.scanner import PageScanner

T = TypeVar("T")

ON_LOOP_BYTES: Final = 256 << 10
"""What is longer may have 40,000 series to read, half a second's work: a thread does it, not the event loop."""


class MetricsPage(Generic[T]):
    """Pages at one address, of which the series with these `names` are read.

    `made` computes the result from series, values and the time of the page (unix seconds); it may raise SourceError.
    """

    def __init__(
        self,
        client: HttpClient,
        url: URL,
        names: frozenset[bytes],
        made: Callable[[Sequence[Series], Sequence[float], float], T],
    ) -> None:
        self._client, self._url, self._names, self._made = client, url, names, made
        self._scanner = PageScanner[tuple[Series, ...]](names, tuple)

    async def read(self, timeout_seconds: float) -> tuple[float, T]:
        """Return when the page came, and what was made of it. Raises SourceError, which names the address."""
        answer = await self._client.get(self._url, timeout_seconds)
        try:
            if len(answer.body) <= ON_LOOP_BYTES:
                return answer.t, self._of(self._scanner, answer.body, answer.t)
            # A scanner of its own: where the deadline ends the waiting, the thread goes on.
            scanner = PageScanner[tuple[Series, ...]](self._names, tuple)
            return answer.t, await asyncio.to_thread(self._of, scanner, answer.body, answer.t)
        except (PageError, SourceError) as error:
            raise SourceError(error.reason, f"{shown(self._url)}: {error}") from error

    def _of(self, scanner: PageScanner[tuple[Series, ...]], body: bytes, t: float) -> T:
        series, values = scanner.scan(body)
        if series:
            require_end(body)
        once = dict(zip(series, values, strict=True))  # a series that is there twice is no second one
        return self._made(tuple(once), tuple(once.values()), t)
