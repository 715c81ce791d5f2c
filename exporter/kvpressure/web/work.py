"""Work that requests of strangers may cause: in a thread of its own, with a short queue that nobody can fill alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

MAX_QUEUED: Final = 16
"""Pieces of work that may wait or be under way at once."""

MAX_QUEUED_PER_CLIENT: Final = 4
"""How many of them one client may have asked for, so that another one's turn comes soon."""

RETRY_SECONDS: Final = 1
"""When a client that was turned away may come again."""


class Busy(Exception):  # noqa: N818 - a state, not a fault
    """Too much of this kind is waiting already."""


class BoundedExecutor:
    """Does one piece of work after the other; what is asked for while it is under way is not done twice.

    Used from one event loop. The thread is as important as any other: one that gives way while it holds the
    interpreter's lock makes all others wait.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._under_way: dict[Hashable, asyncio.Future[Any]] = {}
        self._clients: Counter[str] = Counter()
        self.refused = 0

    async def run(self, key: Hashable, client: str, work: Callable[[], T]) -> T:
        """Return the result of `work`, or of that under way with the same `key`. Raise Busy and what `work` raises."""
        future = self._under_way.get(key)
        if future is None:
            if len(self._under_way) >= MAX_QUEUED or self._clients[client] >= MAX_QUEUED_PER_CLIENT:
                self.refused += 1
                raise Busy
            future = asyncio.get_running_loop().run_in_executor(self._executor, work)
            self._under_way[key] = future
            self._clients[client] += 1
            future.add_done_callback(lambda ended: self._ended(key, client, ended))
        # Whoever goes away must not take the answer from those who stay.
        return cast(T, await asyncio.shield(future))

    def close(self) -> None:
        """Take no more work, and do not wait for what is under way."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _ended(self, key: Hashable, client: str, future: asyncio.Future[Any]) -> None:
        del self._under_way[key]
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]
        if not future.cancelled():
            future.exception()  # nobody may be left to ask for it
