"""Large answers in slices: whoever reads slowly holds a slice of its own, of a page that all share.

aiohttp writes a body in one piece, of which asyncio keeps a copy for each connection: 6.7 MB of metrics from 512
engines, times hundreds of slow readers. Here the next slice is written when the one before has left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

SLICE_BYTES: Final = 32 << 10
"""What one connection holds at most of an answer, over TLS up to 128 KiB: 16 MiB with all connections at once."""

MAX_PAGES_BYTES: Final = 16 << 20
"""Pages that are being sent, each counted once: two of 512 engines. Slow readers who came at different times would
otherwise keep each the page of their second."""

DROPS_AT_ONCE: Final = 4
DROP_PAUSE_SECONDS: Final = 0.005
"""Readers that are dropped in one turn of the event loop, and before the next: ending a connection takes half a
millisecond, and hundreds in one turn made a probe wait for 0.1 s and more."""

Reader = TypeVar("Reader", bound=Hashable)


@dataclass(slots=True)
class _Page(Generic[Reader]):
    """One that is being sent to these; the reference keeps its id from being given to another."""

    body: bytes
    readers: dict[Reader, None] = field(default_factory=dict)


class SharedPages(Generic[Reader]):
    """The large pages that are being sent, bounded: the readers of the oldest are given up with `drop`."""

    def __init__(self, drop: Callable[[Reader], None]) -> None:
        self._drop = drop
        self._pages: dict[int, _Page[Reader]] = {}

    @property
    def size_bytes(self) -> int:
        """Of all pages that are being sent."""
        return sum(len(page.body) for page in self._pages.values())

    @contextlib.contextmanager
    def sending(self, body: bytes, reader: Reader) -> Iterator[None]:
        """Count `body` as held by `reader`, older pages giving way to it."""
        page = self._pages.setdefault(id(body), _Page(body))
        page.readers[reader] = None
        while self.size_bytes > MAX_PAGES_BYTES and len(self._pages) > 1:
            self._evict_oldest()
        try:
            yield
        finally:
            page.readers.pop(reader, None)
            if not page.readers and self._pages.get(id(body)) is page:
                del self._pages[id(body)]

    def _evict_oldest(self) -> None:
        self._drop_some(self._pages.pop(next(iter(self._pages))))

    def _drop_some(self, page: _Page[Reader]) -> None:
        for reader in list(page.readers)[:DROPS_AT_ONCE]:
            page.readers.pop(reader, None)
            self._drop(reader)
        if page.readers:
            asyncio.get_running_loop().call_later(DROP_PAUSE_SECONDS, self._drop_some, page)


class SlicedBody(Payload, Generic[Reader]):
    """A body for aiohttp that is written in slices."""

    _autoclose = True
    _value: bytes

    def __init__(self, body: bytes, reader: Reader, pages: SharedPages[Reader]) -> None:
        super().__init__(body)
        self._size = len(body)
        self._reader = reader
        self._pages = pages

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as text."""
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write it all, each slice when the one before has left. Raises ConnectionError."""
        body, self._value = self._value, b""  # the response may outlive its sending until a full collection of garbage
        with self._pages.sending(body, self._reader), memoryview(body) as view:
            for start in range(0, len(view), SLICE_BYTES):
                await writer.write(view[start : start + SLICE_BYTES])
                await writer.drain()
                await asyncio.sleep(0)  # a fast reader's turn ends too: the next one may be a probe's
