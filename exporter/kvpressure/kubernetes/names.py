"""Name lookups of API servers in a thread, without the addresses that must not be requested (decision 0152)."""

from __future__ import annotations

import httpx2

from kvpressure.net.addresses import parsed, refusal
from kvpressure.net.resolver import RefusedAddressError, ThreadPerLookup


class Names(httpx2.AsyncBaseTransport):
    """A transport that resolves names for `transport`; not behind a proxy, which resolves them itself."""

    def __init__(self, transport: httpx2.AsyncBaseTransport, *, proxied: bool) -> None:
        self._transport, self._proxied = transport, proxied
        self._resolver = ThreadPerLookup()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response of the first address that accepts a connection. Raises what httpx2 does, and OSError."""
        url, host = request.url, request.url.host
        if reason := refusal(host, link_local=True):
            raise RefusedAddressError(f"{host} is {reason}, which is never connected to")
        if self._proxied or parsed(host) is not None:
            return await self._transport.handle_async_request(request)
        request.extensions = {"sni_hostname": host, **request.extensions}
        *others, last = [one["host"] for one in await self._resolver.resolve(host, url.port or 0)]
        for address in others:
            request.url = url.copy_with(host=address)
            try:
                return await self._transport.handle_async_request(request)
            except httpx2.ConnectError:
                continue
        request.url = url.copy_with(host=last)
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()
