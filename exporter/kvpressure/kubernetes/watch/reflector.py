"""Lists and then watches one kind of object until cancelled.

Records stay until the API server reports a change: an error never removes any. The rules are those
of https://kubernetes.io/docs/reference/using-api/api-concepts/ (resource versions, bookmarks, 410 Gone, chunks).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import structlog

from kvpressure.kubernetes import ForbiddenError, GoneError, KubeError
from kvpressure.kubernetes.objects import mapping, text
from kvpressure.kubernetes.watch.resource import SHARE, Resource, Sink, Tuning, is_refusal, refused_user
from kvpressure.model.errors import GarbageError, SourceError, TimedOutError, TooLargeError
from kvpressure.model.samples import SourceHealth
from kvpressure.net.guard import Guard
from kvpressure.net.schedule import Clock
from kvpressure.net.threads import on_share
from kvpressure.printable import brief

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from kvpressure.kubernetes.watch.connection import Connection

MAX_PAGES: Final = 200
OPENINGS_BEFORE_LIST: Final = 3
ITEMS_AT_ONCE: Final = 16
"""Objects read at once in a thread."""

log = structlog.get_logger("kvpressure.sources")


R = TypeVar("R")


class StalledWatchError(SourceError, reason="stalled"):
    """A watch says nothing for longer than its timeout."""


class ExpiredListError(SourceError, reason="expired"):
    """A list took so long that the API server has forgotten its version."""


class WatchError(SourceError, reason="watch_error"):
    """The API server ended a watch with an error."""


class Reflector(Generic[R]):
    """One list-and-watch: `run` it in a task of its own."""

    def __init__(
        self,
        resource: Resource,
        connection: Connection,
        read: Callable[[Mapping[str, Any]], R | None],
        sink: Sink[R],
        clock: Clock,
        tuning: Tuning,
    ) -> None:
        self._resource, self._read, self._sink, self._clock, self._tuning = resource, read, sink, clock, tuning
        self._connection = connection
        self._guard: Guard[Any] = Guard(
            resource.source,
            resource.target,
            interval_seconds=tuning.retry_seconds,
            deadline_seconds=2 * (tuning.list_seconds + tuning.watch_seconds + tuning.grace_seconds),
            clock=clock,
        )
        self._version: str | None = None
        self._exact = False
        self._failures = 0
        self._watching = False
        self._confirmed: float | None = None
        self._logged_bug = False
        self._watch_seconds = tuning.watch_seconds

    @property
    def confirmed(self) -> float | None:
        """When the records were last known to be current: now while a watch is open, else when it ended."""
        return self._clock.wall() if self._watching else self._confirmed

    def health(self) -> SourceHealth:
        """Return the health; an open watch counts as a continuing success."""
        health = self._guard.health()
        return replace(health, t=self._clock.wall(), last_success=self.confirmed) if self._watching else health

    async def run(self) -> None:
        """List and watch until cancelled."""
        try:
            while True:
                if self._version is not None or await self._guard.attempt(self._list):
                    await self._sleep(await self._watch())
                else:
                    await self._sleep(False)
        finally:
            await self._connection.aclose()

    async def _sleep(self, went_well: bool) -> None:
        # Only a watch is a success: a server that ends every watch at once must not get one list after the other.
        self._failures = 0 if went_well else self._failures + 1
        pause = self._tuning.pause_seconds(self._failures, self._guard.failure)
        await self._clock.sleep_until(self._clock.monotonic() + pause)

    async def _list(self) -> bool:
        records: list[R] = []
        try:
            async with asyncio.timeout(self._tuning.list_seconds):
                version = await self._pages(records)
        except TimeoutError:
            sentence = f"listing {self._resource.plural} took longer than {self._tuning.list_seconds:g} s"
            raise TimedOutError(f"{sentence}; is the API server overloaded or cut off?") from None
        except GoneError:
            self._exact = True
            raise ExpiredListError(f"listing {self._resource.plural} took so long that it expired") from None
        except KubeError as error:
            raise self._refused(error, "list") from error
        self._version, self._exact, self._confirmed = version, False, self._clock.wall()
        self._sink.replaced(records)
        return True

    async def _pages(self, records: list[R]) -> str:
        # Version 0 is answered from the server's cache; without a version it reads all pods of the cluster from etcd.
        # After a 410 that cache may be too old, so then it is not used.
        narrowed = {**self._resource.params, "limit": str(self._tuning.page_items)}
        params = narrowed if self._exact else {**narrowed, "resourceVersion": "0"}
        for _ in range(MAX_PAGES):
            page = await self._connection.page(self._resource, params)
            while some := await on_share(SHARE, self._read_some, page.items):
                records.extend(record for record in some if record is not None)
            if not page.next_page:
                return page.version
            params = {**narrowed, "continue": page.next_page}
        raise TooLargeError(f"the list of {self._resource.plural} has more than {MAX_PAGES} pages")

    def _read_some(self, items: Iterator[Mapping[str, Any] | None]) -> list[R | None]:
        return [self._record(item) for item in islice(items, ITEMS_AT_ONCE)]

    async def _watch(self) -> bool:
        """Watch from the last resource version; return False when the watch could not be opened or ended too soon."""
        stream = await self._guard.attempt(self._open)
        # A version that is unknown to a restored or replaced server is refused with another status than 410.
        if stream is None:
            if self._failures >= OPENINGS_BEFORE_LIST and not is_refusal(self._guard.failure):
                self._version = None
            return False
        opened, confirmed_before = self._clock.monotonic(), self._confirmed
        self._watching = True
        try:
            ended_well = bool(await self._guard.attempt(partial(self._follow, stream)))
        finally:
            self._watching = False
            stream.close()
        had_events = self._confirmed != confirmed_before
        if ended_well:
            self._confirmed = self._clock.wall()
        return ended_well and (had_events or self._clock.monotonic() - opened >= self._tuning.spacing_seconds)

    async def _open(self) -> ClientResponse | None:
        """Return an open watch, None where its version is too old."""
        # Random, as the exporters of all nodes may have started together.
        self._watch_seconds = round(self._tuning.watch_seconds * random.uniform(0.8, 1.2))
        params = {
            **self._resource.params,
            "resourceVersion": self._version or "",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._watch_seconds),
        }
        try:
            async with asyncio.timeout(self._tuning.open_seconds):
                return await self._connection.watch(self._resource, params)
        except TimeoutError:
            sentence = f"no answer to a watch of {self._resource.plural} within {self._tuning.open_seconds:g} s"
            raise TimedOutError(f"{sentence}; is the API server overloaded or cut off?") from None
        except GoneError:
            self._gone()
            return None
        except KubeError as error:
            raise self._refused(error, "watch") from error

    async def _follow(self, stream: ClientResponse) -> bool:
        tuning = self._tuning
        last_event = self._clock.monotonic()
        try:
            async with (
                asyncio.timeout(self._watch_seconds + tuning.grace_seconds),
                aclosing(self._connection.lines(stream)) as lines,
            ):
                async for line in lines:
                    last_event = self._clock.monotonic()
                    await self._take(line)
        except TimeoutError:
            if self._clock.monotonic() - last_event < tuning.grace_seconds:
                return True  # a server that does not honour the timeout
            sentence = f"the watch of {self._resource.plural} said nothing for longer than its timeout"
            raise StalledWatchError(f"{sentence}; it is started again") from None
        except GoneError:
            self._gone()
            return False
        except SourceError:
            self._version = None  # unreadable events have to be listed
            raise
        return True

    async def _take(self, line: bytes) -> None:
        kind, version, record = await on_share(SHARE, self._understood, line)
        # Only now: a watch that is cancelled before starts again with this event.
        self._confirmed = self._clock.wall()
        self._version = version or self._version
        if record is not None:
            self._sink.changed(record, deleted=kind == "DELETED")

    def _understood(self, line: bytes) -> tuple[str, str, R | None]:
        """Return kind, resource version and record of an event. Raises GoneError, WatchError, GarbageError."""
        # Imported here: a process without Kubernetes need not load msgspec.
        from kvpressure.kubernetes.objects.wire import read_event  # noqa: PLC0415

        try:
            kind, entry = read_event(line)
        except ValueError as error:
            sentence = f"the watch of {self._resource.plural} sent a line that is not an event: {brief(error)}"
            raise GarbageError(sentence) from error
        if kind == "ERROR":
            status = mapping(entry)
            message = brief(status.get("message", "without a message"))
            gone = status.get("code") == 410 or status.get("reason") in ("Expired", "Gone")
            sentence = f"the watch of {self._resource.plural} ended with an error: {message}"
            raise (GoneError if gone else WatchError)(sentence)
        known = kind in ("ADDED", "MODIFIED", "DELETED")
        return kind, text(entry, "metadata", "resourceVersion"), self._record(entry) if known else None

    def _gone(self) -> None:
        self._version, self._exact = None, True

    def _refused(self, error: KubeError, verb: str) -> SourceError:
        if not isinstance(error, ForbiddenError):
            return error
        what = self._resource
        role = f"a Role in {what.namespace} (or a ClusterRole)" if what.namespace else "the ClusterRole"
        return ForbiddenError(
            f"not allowed to {verb} {what}: give {refused_user(error.message)} {role} with the rule "
            f'{{apiGroups: [""], resources: [{what.plural}], verbs: [list, watch]}}; it is tried again within a minute',
        )

    def _record(self, entry: Mapping[str, Any] | None) -> R | None:
        if entry is None:
            return None
        try:
            return self._read(entry)
        except Exception as error:
            # An object that the code does not expect must not cost all others. Logged once, not at each change.
            if not self._logged_bug:
                self._logged_bug = True
                about = {"source": self._resource.source, "error": brief(error)}
                log.error("Kubernetes object not read", **about, exc_info=error)
            return None
