"""Requests to the API server: JSON, text and port-forward websockets, every failure a `KubeError`."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import aiohttp
from yarl import URL

from kvpressure.kube.credentials import Credentials
from kvpressure.kube.errors import KubeError
from kvpressure.kube.kubeconfig import Config
from kvpressure.sources.base import brief
from kvpressure.sources.http import explain, shown
from kvpressure.sources.resolver import ThreadPerLookup

DEADLINE_SECONDS: Final = 15.0
LARGEST_JSON_BYTES: Final = 64 * 1024 * 1024

Object = dict[str, Any]
"""One Kubernetes object as JSON."""


@dataclass(frozen=True, slots=True)
class Action:
    """What a request does, as RBAC names it: for sentences when it is refused."""

    verb: str
    resource: str
    namespace: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''} in namespace {self.namespace}"


class KubeClient:
    """One API server with one user's credentials. Use it as an async context manager."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._credentials = Credentials(config)
        self._proxy = _proxy(config)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> KubeClient:
        redirects = aiohttp.TraceConfig()
        redirects.on_request_redirect.append(_refuse_redirect)  # opening a websocket has no option for it
        self._session = aiohttp.ClientSession(
            trace_configs=[redirects],
            connector=aiohttp.TCPConnector(resolver=ThreadPerLookup()),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "kvpressure"},
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def json(self, path: str, action: Action, query: Mapping[str, str] | None = None) -> Object:
        """One object or list. Raises KubeError, with the status that the API server answered."""
        body = await self._body(path, action, dict(query or {}), LARGEST_JSON_BYTES)
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise KubeError(f"{self.config.server} answered something that is no JSON; is it an API server?") from error
        return found if isinstance(found, dict) else {}

    async def text(self, path: str, action: Action, query: Mapping[str, str], cap_bytes: int) -> bytes:
        """At most `cap_bytes` of a text, such as a log. Raises KubeError."""
        return await self._body(path, action, dict(query), cap_bytes, cut=True)

    async def websocket(
        self, path: str, action: Action, query: Mapping[str, str], protocol: str
    ) -> aiohttp.ClientWebSocketResponse:
        """An open websocket that speaks `protocol`. Raises KubeError."""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await self._upgrade(path, query, protocol)
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 401 and self._credentials.renewable:
                self._credentials.renew()
            # The upgrade's answer comes without its body; the same request without an upgrade tells the reason.
            await self._body(path, action, dict(query), LARGEST_JSON_BYTES)
            raise self._refusal(error.status, "", action) from error
        except TimeoutError as error:
            raise self._too_slow() from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._unreachable(error) from error

    async def _upgrade(self, path: str, query: Mapping[str, str], protocol: str) -> aiohttp.ClientWebSocketResponse:
        socket: aiohttp.ClientWebSocketResponse = await self._opened().ws_connect(
            self._url(path), params=dict(query), protocols=(protocol,), autoping=True, **await self._request()
        )
        if socket.protocol != protocol:
            await socket.close()
            raise KubeError(
                f"{self.config.server} does not forward ports over websockets ({protocol}); is a proxy cut in?"
            )
        return socket

    async def _body(
        self, path: str, action: Action, query: Mapping[str, str], cap_bytes: int, *, cut: bool = False
    ) -> bytes:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                status, body = await self._get(path, query, cap_bytes)
                if status == 401 and self._credentials.renewable:
                    self._credentials.renew()
                    status, body = await self._get(path, query, cap_bytes)
        except TimeoutError as error:
            raise self._too_slow() from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._unreachable(error) from error
        if status != 200:
            raise self._refusal(status, _message(body), action)
        if len(body) > cap_bytes and not cut:
            raise KubeError(f"the answer to {action} is larger than {cap_bytes >> 20} MiB; narrow it with -l or a name")
        return body[:cap_bytes]

    async def _get(self, path: str, query: Mapping[str, str], cap_bytes: int) -> tuple[int, bytes]:
        request = await self._request()
        async with self._opened().get(self._url(path), params=query, allow_redirects=False, **request) as response:
            chunks, size = [], 0
            while size <= cap_bytes and (chunk := await response.content.readany()):
                chunks.append(chunk)
                size += len(chunk)
            return response.status, b"".join(chunks)

    async def _request(self) -> dict[str, Any]:
        return {
            "headers": await self._credentials.headers(),
            "ssl": await self._credentials.tls(),
            "server_hostname": self.config.server_name or None,
            "proxy": self._proxy or None,
        }

    def _opened(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use the client as a context manager"  # noqa: S101 - a caller's mistake
        return self._session

    def _url(self, path: str) -> URL:
        return URL(self.config.server + path)

    @property
    def _who(self) -> str:
        return f"context {self.config.context}" if self.config.context else self.config.origin

    def _refusal(self, status: int, message: str, action: Action) -> KubeError:
        said = f" (it says: {brief(message, 300)})" if message else ""
        server = shown(URL(self.config.server))
        if status == 401:
            return KubeError(f"{server} does not know the credentials of {self._who}{said}; log in again", status)
        if status == 403:
            return KubeError(
                f"you may not {action}{said}; ask whoever administers the cluster for a Role that allows it", status
            )
        if status == 404:
            return KubeError(f"{server} has nothing to {action}{said}", status)
        return KubeError(f"{server} answered {status} to {action}{said}", status)

    def _too_slow(self) -> KubeError:
        return KubeError(f"{shown(URL(self.config.server))} did not answer within {DEADLINE_SECONDS:.0f} s")

    def _unreachable(self, error: Exception) -> KubeError:
        sentence = explain(error, shown(URL(self.config.server))).sentence
        return KubeError(f"the API server of {self._who} cannot be reached: {sentence}")


async def _refuse_redirect(_: object, __: object, answer: aiohttp.TraceRequestRedirectParams) -> None:
    raise KubeError(f"{shown(answer.url)} answered with a redirect, which is not followed; is a proxy cut in?")


def _message(body: bytes) -> str:
    """The sentence of a `Status` object, else the start of whatever came."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return body[:300].decode(errors="replace").strip()
    return str(found.get("message", "")) if isinstance(found, dict) else ""


def _proxy(config: Config) -> str:
    """The kubeconfig's proxy, else the environment's, as kubectl does. Raises KubeError for one that is not HTTP."""
    url = URL(config.server)
    proxy = config.proxy
    if not proxy and not urllib.request.proxy_bypass_environment(url.host or ""):  # type: ignore[attr-defined]
        proxy = urllib.request.getproxies_environment().get(url.scheme, "")
    if proxy and not proxy.startswith(("http://", "https://")):
        scheme = proxy.partition(":")[0]
        raise KubeError(f"the proxy for {shown(url)} is a {scheme} one; only http and https proxies are understood")
    return proxy
