"""Websockets to the API server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import aiohttp

from kvpressure.net.waiting import cancel

MAX_MESSAGE_BYTES: Final = 1 << 20
"""Kubelets send 32 KiB at once."""

_MAX_WAITING: Final = 4
_CLOSE_SECONDS: Final = 1.0
"""How long the close handshake may take."""


async def refuse_redirected_upgrade(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Return the response to a request, which aiohttp would follow where it redirects an upgrade."""
    response = await send(request)
    if 300 <= response.status < 400 and "Upgrade" in request.headers:
        response.close()
        raise aiohttp.WSServerHandshakeError(response.request_info, response.history, status=response.status)
    return response


class WebSocket:
    """An open websocket, which any task may use; one of its own reads, so that pings are always answered."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self._socket = socket
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_WAITING)
        self._reading = asyncio.create_task(self._read())
        self.closed = False

    async def receive(self) -> bytes | None:
        """Return the next binary message; None when there are no more."""
        if self.closed and self._messages.empty():
            return None
        return await self._messages.get()

    async def send(self, data: bytes) -> None:
        """Send a binary message. Raises OSError when the connection is gone."""
        try:
            await self._socket.send_bytes(data)
        except OSError as error:
            raise ConnectionResetError("the connection is closed") from error

    async def close(self) -> None:
        """Close the connection, with a close frame where it is open."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._socket.close()
        await cancel([self._reading])

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    break
                await self._messages.put(message.data)
            await self._socket.close()
        finally:
            self.closed = True
            with suppress(asyncio.QueueFull):
                self._messages.put_nowait(None)
