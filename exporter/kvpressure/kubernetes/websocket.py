"""A websocket that any task may use: httpx2 binds one to the task that opened it, so it has a task of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import httpx2
from httpx2.websockets import AsyncWebSocketSession, HTTPXWSException, WebSocketUpgradeError
from wsproto.utilities import LocalProtocolError

MAX_MESSAGE_BYTES: Final = 1 << 20
"""Kubelets send 32 KiB at once."""

_MAX_WAITING: Final = 4
_CLOSE_SECONDS: Final = 1.0
"""How long the close handshake may take."""


class NotUpgradedError(Exception):
    """The server answered with this status; 101 means that it upgraded to another protocol."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class WebSocket:
    """An open websocket; `open` makes one."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_WAITING)
        self._opened: asyncio.Future[AsyncWebSocketSession] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    @classmethod
    async def open(cls, http: httpx2.AsyncClient, protocol: str, request: dict[str, Any]) -> WebSocket:
        """Upgrade a GET `request`. Raises NotUpgradedError, and what httpx2 does."""
        found = cls()
        found._task = asyncio.create_task(found._live(http, protocol, request))
        try:
            session = await found._opened
        except asyncio.CancelledError:
            await found.close()
            raise
        if session.subprotocol != protocol:
            await found.close()
            raise NotUpgradedError(101)
        return found

    async def receive(self) -> bytes | None:
        """Return the next binary message; None when there are no more."""
        if self.closed and self._messages.empty():
            return None
        return await self._messages.get()

    async def send(self, data: bytes) -> None:
        """Send a binary message. Raises OSError when the connection is gone."""
        try:
            await self._opened.result().send_bytes(data)
        except (HTTPXWSException, LocalProtocolError) as error:
            raise ConnectionResetError("the connection is closed") from error

    async def close(self) -> None:
        """Close the connection, with a close frame where it is open."""
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)

    async def _live(self, http: httpx2.AsyncClient, protocol: str, request: dict[str, Any]) -> None:
        try:
            async with http.websocket(
                subprotocols=[protocol],
                max_message_size_bytes=MAX_MESSAGE_BYTES,
                keepalive_ping_interval_seconds=None,
                **request,
            ) as session:
                self._settle(session)
                while True:
                    await self._messages.put(await session.receive_bytes())
        except WebSocketUpgradeError as error:
            self._settle(NotUpgradedError(error.response.status_code))
        except Exception as error:  # noqa: BLE001 - the library raises groups of any exceptions
            self._settle(error)
        finally:
            self.closed = True
            with suppress(asyncio.QueueFull):
                self._messages.put_nowait(None)

    def _settle(self, outcome: AsyncWebSocketSession | Exception) -> None:
        if self._opened.done():
            return
        if isinstance(outcome, Exception):
            self._opened.set_exception(outcome)
        else:
            self._opened.set_result(outcome)
