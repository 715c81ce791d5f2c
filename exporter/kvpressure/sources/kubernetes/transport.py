"""What the list-and-watch needs of a connection to the API server, and the words both sides use."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kvpressure.sources.base import SourceError


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. `items` decodes one object at a time and gives None for what is not one.

    Of an object that holds more values than are read it gives the name only: `metadata` and nothing else.
    """

    version: str
    next_page: str
    items: Iterator[Mapping[str, Any] | None]


class Gone(Exception):  # noqa: N818 - 410 Gone is what the API server calls it, and it is no failure
    """The resource version is too old (410): everything has to be listed anew."""


class RefusedError(SourceError):
    """The API server says no (401, 403); `message` is its own text."""

    def __init__(self, reason: str, sentence: str, message: str) -> None:
        super().__init__(reason, sentence)
        self.message = message


class Stream(Protocol):
    """An open watch."""

    def events(self) -> AsyncGenerator[tuple[str, Mapping[str, Any] | None], None]:
        """Kind and object of each event, as they come; ends where the server or the network ends it.

        Raises Gone, and SourceError for what is not a watch.
        """

    async def aclose(self) -> None:
        """Close the connection."""


class Transport(Protocol):
    """A client of one API server. After a failure it makes its connection, and reads its credentials, anew."""

    async def page(self, path: str, params: Mapping[str, str]) -> Page:
        """One page of a list. Raises Gone, RefusedError, SourceError."""

    async def watch(self, path: str, params: Mapping[str, str]) -> Stream:
        """Open a watch. Raises Gone, RefusedError, SourceError."""

    async def aclose(self) -> None:
        """Close every connection."""
