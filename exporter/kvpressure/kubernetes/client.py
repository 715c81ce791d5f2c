"""Requests to the API server: objects, lists, watches, texts and websockets; errors are `KubeError`s."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import aiohttp
from yarl import URL

from kvpressure.kubernetes import Action, GoneError, KubeError
from kvpressure.kubernetes.credentials import Credentials
from kvpressure.kubernetes.kubeconfig import Config
from kvpressure.kubernetes.objects import Object, at
from kvpressure.kubernetes.websocket import MAX_MESSAGE_BYTES, WebSocket, refuse_redirected_upgrade
from kvpressure.net.addresses import refusal
from kvpressure.net.http import open_session, shown
from kvpressure.net.outgoing import (
    FAILURES,
    environment_proxy,
    is_supported,
    reason_and_sentence,
)
from kvpressure.net.resolver import RefusedAddressError, ThreadPerLookup
from kvpressure.printable import brief

DEADLINE_SECONDS: Final = 15.0
MAX_JSON_BYTES: Final = 64 << 20
MAX_STATUS_BYTES: Final = 64 << 10
MAX_PAGES: Final = 200
"""Of one list."""

Query = Mapping[str, str]

_HEADERS: Final = {"User-Agent": "kvpressure", "Accept-Encoding": "identity"}
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A watch may be silent for minutes; with these a lost peer is noticed within one."""


class KubeClient:
    """One API server, at `where`, with one user's credentials. Use it as an async context manager.

    Redirects are refused, responses are bounded, and addresses of clouds' metadata services are never requested. Only
    requests that a person waits for have a deadline here. A `daemon` does not use the environment's proxies.
    """

    def __init__(self, config: Config, *, daemon: bool = False) -> None:
        try:
            url = URL(config.server)
        except ValueError as error:
            raise KubeError(f"{config.origin} names a server that is no address: {brief(error)}") from error
        self.config = config
        self._credentials = Credentials(config)
        self._proxy = _proxy(config, url, daemon=daemon)
        self._host = url.host or ""
        self._session: aiohttp.ClientSession | None = None
        self._who = f"context {config.context}" if config.context else config.origin
        self.where = brief(url.host_port_subcomponent, 80)
        self._shown = shown(url.with_port(None) if url.is_default_port() else url)

    async def __aenter__(self) -> KubeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def json(self, path: str, action: Action, query: Query | None = None) -> Object:
        """Return one object or list. Raises KubeError, with the status that the API server answered."""
        body = await self._body(path, action, query or {}, MAX_JSON_BYTES)
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            sentence = f"{self.config.server} answered something that is no JSON; is it an API server?"
            raise KubeError(sentence, reason="garbage") from error
        return found if isinstance(found, dict) else {}

    async def items(self, path: str, action: Action, *, limit: int) -> list[Object]:
        """Return every object of a list, read in pages of `limit`. Raises KubeError."""
        found: list[Object] = []
        query = {"limit": str(limit)}
        for _ in range(MAX_PAGES):
            page = await self.json(path, action, query)
            items = at(page, "items")
            found += [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
            if not (following := at(page, "metadata", "continue")):
                return found
            query = {"limit": str(limit), "continue": str(following)}
        raise KubeError(f"the answer to {action} has more than {MAX_PAGES} pages", reason="too_large")

    async def text(self, path: str, action: Action, query: Query, cap_bytes: int) -> bytes:
        """Return at most `cap_bytes` of a text, such as a log. Raises KubeError."""
        return await self._body(path, action, query, cap_bytes, cut=True)

    async def open(self, path: str, action: Action, query: Query) -> aiohttp.ClientResponse:
        """Return the API server's response before its body is read, without a deadline.

        Raises KubeError for any status but 200, after a second request where new credentials may help, and `FAILURES`.
        """
        renewed = False
        while True:
            response = await self._opened().get(allow_redirects=False, **await self._request(path, query))
            if response.status == 200:
                return response
            async with response:
                body = await capped(response, MAX_STATUS_BYTES)
            message = body[:300].decode(errors="replace").strip()
            with suppress(ValueError, RecursionError):  # of a `Status` object its message
                status = json.loads(body)
                message = str(status.get("message", "")) if isinstance(status, dict) else ""
            if response.status != 401 or renewed or not self._credentials.renewable:
                raise self._refusal(response.status, message, action)
            self._credentials.renew()
            renewed = True

    async def websocket(self, path: str, action: Action, query: Query, protocol: str) -> WebSocket:
        """Return an open websocket that speaks `protocol`. Raises KubeError."""
        try:
            request = await self._request(path, query)
            async with asyncio.timeout(DEADLINE_SECONDS):
                made = await self._opened().ws_connect(protocols=(protocol,), max_msg_size=MAX_MESSAGE_BYTES, **request)
            if made.protocol == protocol:
                return WebSocket(made)
            await WebSocket(made).close()
            status = 101
        except aiohttp.WSServerHandshakeError as error:
            status = error.status
        except TimeoutError as error:
            raise self._too_slow() from error
        except FAILURES as error:
            raise self.unreachable(error) from error
        if status == 101:
            sentence = f"{self.config.server} does not forward ports over websockets ({protocol}); is a proxy between?"
            raise KubeError(sentence, reason="garbage")
        if status == 401 and self._credentials.renewable:
            self._credentials.renew()
        # The response to an upgrade has no body; the same request without an upgrade returns the reason.
        await self._body(path, action, query, MAX_STATUS_BYTES)
        raise self._refusal(status, "", action)

    async def _body(self, path: str, action: Action, query: Query, cap_bytes: int, *, cut: bool = False) -> bytes:
        try:
            await self._credentials.tls()  # outside of the deadline: a plugin may wait for a person
            async with asyncio.timeout(DEADLINE_SECONDS), await self.open(path, action, query) as response:
                body = await capped(response, cap_bytes)
        except TimeoutError as error:
            raise self._too_slow() from error
        except FAILURES as error:
            raise self.unreachable(error) from error
        if len(body) > cap_bytes and not cut:
            sentence = f"the answer to {action} is larger than {cap_bytes >> 20} MiB; narrow it with -l or a name"
            raise KubeError(sentence, reason="too_large")
        return body[:cap_bytes]

    async def _request(self, path: str, query: Query) -> dict[str, Any]:
        if reason := refusal(self._host, link_local=True):
            raise RefusedAddressError(f"{self._host} is {reason}, which is never connected to")
        context = await self._credentials.tls()
        return {
            "url": self.config.server + path,
            "params": dict(query),
            "headers": await self._credentials.headers(),
            "ssl": context or True,
            "server_hostname": (self.config.server_name or None) if context else None,
            "proxy": self._proxy or None,
        }

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, resolver=ThreadPerLookup(), socket_factory=_kept_alive)
            self._session = open_session(connector, _HEADERS, refuse_redirected_upgrade)
        return self._session

    def _refusal(self, status: int, message: str, action: Action) -> KubeError:
        detail = f" (it says: {brief(message, 300)})" if message else ""
        server, reason = self._shown, {401: "unauthorized", 403: "forbidden"}.get(status, "http_status")
        if 300 <= status < 400:
            sentence = f"{server} answered with a redirect, which is not followed; is a proxy between?"
        elif status == 401:
            sentence = f"{server} does not know the credentials of {self._who}{detail}; log in again"
        elif status == 403:
            sentence = f"you may not {action}{detail}; ask the administrator of the cluster for a Role that allows it"
        elif status == 404:
            sentence = f"{server} has nothing to {action}{detail}"
        else:
            sentence = f"{server} answered {status} to {action}{detail}"
        kind = GoneError if status == 410 else KubeError
        return kind(sentence, status, reason=reason, message=message)

    def _too_slow(self) -> KubeError:
        return KubeError(f"{self._shown} did not answer within {DEADLINE_SECONDS:.0f} s", reason="timeout")

    def unreachable(self, error: BaseException) -> KubeError:
        """Return the KubeError for a request that raised one of `FAILURES`."""
        reason, cause = reason_and_sentence(error, self._shown, "the cluster's CA")
        return KubeError(f"the API server of {self._who} cannot be reached: {cause}", reason=reason, cause=cause)


async def capped(response: aiohttp.ClientResponse, cap_bytes: int) -> bytes:
    """Return the body, up to one chunk more than `cap_bytes` of it."""
    chunks, size = [], 0
    while size <= cap_bytes and (chunk := await response.content.readany()):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def _kept_alive(info: tuple[Any, ...]) -> socket.socket:
    """Return a socket for an address as `getaddrinfo` gives it."""
    made = socket.socket(*info[:3])
    for option, value in _KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def _proxy(config: Config, url: URL, *, daemon: bool) -> str:
    """Return the kubeconfig's proxy, else the environment's, as kubectl does. Raises KubeError unless it is HTTP."""
    proxy = config.proxy or ("" if daemon else environment_proxy(url.scheme, url.host or ""))
    if not is_supported(proxy):
        scheme = proxy.partition(":")[0]
        raise KubeError(
            f"the proxy for {brief(url.host)} is a {scheme} one; only http and https proxies are understood"
        )
    return proxy
