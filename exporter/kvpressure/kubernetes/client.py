"""Requests of the daemon to the API server, with its service account; errors are `KubeError`s."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import aiohttp
from yarl import URL

from kvpressure.kubernetes import Action, ForbiddenError, GoneError, KubeError, StatusError, UnauthorizedError
from kvpressure.kubernetes.service_account import ServiceAccount
from kvpressure.model.errors import SourceError, UnreachableError
from kvpressure.net.addresses import refusal
from kvpressure.net.http import open_session, shown
from kvpressure.net.outgoing import request_failure
from kvpressure.net.resolver import RefusedAddressError, ThreadPerLookup
from kvpressure.printable import brief

MAX_STATUS_BYTES: Final = 64 << 10

Query = Mapping[str, str]

_HEADERS: Final = {"User-Agent": "kvpressure", "Accept-Encoding": "identity"}
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A watch may be silent for minutes; with these a lost peer is noticed within one."""


_TYPES: Final[Mapping[int, type[KubeError]]] = {401: UnauthorizedError, 403: ForbiddenError, 410: GoneError}


class KubeClient:
    """The API server of this pod's cluster, at `where`. Use it as an async context manager.

    Redirects and the environment's proxies are not followed, responses are bounded, and addresses of clouds' metadata
    services are never requested. There are no deadlines here.
    """

    def __init__(self, account: ServiceAccount) -> None:
        try:
            url = URL(account.server)
        except ValueError as error:
            raise KubeError(f"the API server's address {account.server} is none: {brief(error)}") from error
        self._account = account
        self._host = url.host or ""
        self._session: aiohttp.ClientSession | None = None
        self._context: ssl.SSLContext | None = None
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

    async def open(self, path: str, action: Action, query: Query) -> aiohttp.ClientResponse:
        """Return the API server's response before its body is read, without a deadline.

        Raises KubeError for any status but 200, and `FAILURES`.
        """
        response = await self._opened().get(allow_redirects=False, **self._request(path, query))
        if response.status == 200:
            return response
        async with response:
            body = await capped(response, MAX_STATUS_BYTES)
        message = body[:300].decode(errors="replace").strip()
        with suppress(ValueError, RecursionError):  # of a `Status` object its message
            status = json.loads(body)
            message = str(status.get("message", "")) if isinstance(status, dict) else ""
        raise self._refusal(response.status, message, action)

    def _request(self, path: str, query: Query) -> dict[str, Any]:
        if reason := refusal(self._host, link_local=True):
            raise RefusedAddressError(f"{self._host} is {reason}, which is never connected to")
        if self._context is None and self._account.server.startswith("https://"):
            self._context = self._account.tls()
        return {
            "url": self._account.server + path,
            "params": dict(query),
            "headers": {"Authorization": f"Bearer {self._account.token()}"},
            "ssl": self._context or True,
        }

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, resolver=ThreadPerLookup(), socket_factory=_kept_alive)
            self._session = open_session(connector, _HEADERS)
        return self._session

    def _refusal(self, status: int, message: str, action: Action) -> KubeError:
        detail = f" (it says: {brief(message, 300)})" if message else ""
        server = self._shown
        if 300 <= status < 400:
            sentence = f"{server} answered with a redirect, which is not followed; is a proxy between?"
        elif status == 401:
            sentence = f"{server} does not know this pod's service account{detail}"
        elif status == 403:
            sentence = f"you may not {action}{detail}; ask the administrator of the cluster for a Role that allows it"
        elif status == 404:
            sentence = f"{server} has nothing to {action}{detail}"
        else:
            sentence = f"{server} answered {status} to {action}{detail}"
        return _TYPES.get(status, StatusError)(sentence, status, message)

    def unreachable(self, error: BaseException) -> SourceError:
        """Return the error for a request that raised one of `FAILURES`."""
        failure = request_failure(error, self._shown, "the cluster's CA")
        if isinstance(failure, UnreachableError):
            sentence = f"no connection to the API server {self.where}: {failure}; do network policies let us through?"
        else:
            sentence = f"the API server cannot be reached: {failure}"
        return failure.saying(sentence)


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
