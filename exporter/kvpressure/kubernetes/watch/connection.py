"""One reflector's requests to the API server, with the service account of this pod as it is at each request."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from yarl import URL

from kvpressure.config.settings.polling import TlsSettings
from kvpressure.kubernetes import ForbiddenError, GoneError, KubeError, StatusError, UnauthorizedError
from kvpressure.kubernetes.objects import Object
from kvpressure.kubernetes.objects.wire import MAX_OBJECT_BYTES, Page, read_object, read_page
from kvpressure.kubernetes.watch.resource import SHARE, Resource
from kvpressure.model.errors import GarbageError, SourceError, TooLargeError, UnreachableError
from kvpressure.net import credentials
from kvpressure.net.addresses import refusal
from kvpressure.net.http import open_session, shown
from kvpressure.net.outgoing import FAILURES, request_failure
from kvpressure.net.resolver import RefusedAddressError, ThreadPerLookup
from kvpressure.net.threads import on_share
from kvpressure.printable import brief

MAX_PAGE_BYTES: Final = 32 << 20
MAX_LINE_BYTES: Final = 4 << 20
MAX_MAP_BYTES: Final = MAX_OBJECT_BYTES
"""The API server stores at most a mebibyte; a ConfigMap that is larger as JSON is not read."""
MAX_STATUS_BYTES: Final = 64 << 10

_HEADERS: Final = {"User-Agent": "kvpressure", "Accept-Encoding": "identity"}
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A watch may be silent for minutes; with these a lost peer is noticed within one."""
_TYPES: Final[Mapping[int, type[KubeError]]] = {401: UnauthorizedError, 403: ForbiddenError, 410: GoneError}


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """Where the API server is; the CA, and a token that the kubelet renews, are read from `folder`."""

    server: str
    folder: Path

    def options(self) -> dict[str, Any]:
        """Return the credentials of a request, for aiohttp. Raises KubeError."""
        try:
            token = credentials.Authorization(self.folder / "token", None, setting="token").value()
            tls: dict[str, Any] = {}
            if self.server.startswith("https://"):
                files = credentials.tls_files(TlsSettings(ca_file=self.folder / "ca.crt"))
                tls["ssl"] = credentials.tls_context(files)
        except SourceError as error:
            raise KubeError(error.sentence) from error
        return {"headers": {"Authorization": token}, **tls}


def service_account() -> ServiceAccount:
    """Return that of this pod. Raises KubeError where this is no pod, or it has none."""
    if not credentials.in_cluster():
        raise KubeError(
            "there is no service account here, with which the API server is asked: run in a pod that has one, or name "
            "engines by engines.targets or engines.file_sd when not in a pod"
        )
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ServiceAccount(server, credentials.TOKEN_FILE.parent)


class Connection:
    """Lists and watches without deadlines but the caller's. Raises SourceError, of which GoneError for a 410.

    Redirects and the environment's proxies are not followed, responses are bounded, and addresses of clouds' metadata
    services are never requested.
    """

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def page(self, resource: Resource, query: Mapping[str, str]) -> Page:
        """Return one page of a list."""
        too_large = f"the API server answered /{resource.path} with more than {MAX_PAGE_BYTES >> 20} MiB"
        body = await self._body(resource.path, f"list {resource}", query, MAX_PAGE_BYTES, too_large)
        try:
            return await on_share(SHARE, read_page, body)
        except ValueError as error:
            sentence = f"the API server answered /{resource.path} with something that is not a list: {brief(error)}"
            raise GarbageError(sentence) from error

    async def config_map(self, namespace: str, name: str) -> Object:
        """Return one ConfigMap."""
        action, path = (
            f"get configmaps {name} in namespace {namespace}",
            f"api/v1/namespaces/{namespace}/configmaps/{name}",
        )
        too_large = f"ConfigMap {name} in namespace {namespace} takes more than {MAX_MAP_BYTES >> 20} MiB as JSON"
        body = await self._body(path, action, {}, MAX_MAP_BYTES, too_large)
        if (config_map := await on_share(SHARE, read_object, body)) is None:
            raise GarbageError(f"the API server answered to {action} with something that is no object")
        return config_map

    async def watch(self, resource: Resource, query: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Return an open watch, for `lines`."""
        return await self._open(resource.path, f"watch {resource}", {**query, "watch": "1"})

    @staticmethod
    async def lines(watch: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """Yield its events until the server or the network ends the watch. Raises TooLargeError."""
        rest = b""
        # A broken connection is an ordinary end of a watch: the next one continues from its version.
        with suppress(aiohttp.ClientError, OSError):
            while chunk := await watch.content.readany():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise TooLargeError(f"the API server sent more than {MAX_LINE_BYTES >> 20} MiB as one event")
                for line in filter(bytes.strip, lines):
                    yield line

    async def aclose(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _body(self, path: str, action: str, query: Mapping[str, str], cap_bytes: int, too_large: str) -> bytes:
        try:
            async with await self._open(path, action, query) as response:
                body = await _capped(response, cap_bytes)
        except FAILURES as error:
            raise _unreachable(error, str(response.url.origin())) from error
        if len(body) > cap_bytes:
            raise TooLargeError(too_large)
        return body

    async def _open(self, path: str, action: str, query: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Return a response with status 200 before its body is read."""
        account = service_account()
        options = account.options()
        try:
            url = URL(account.server) / path
            if reason := refusal(url.host or "", link_local=True):
                raise RefusedAddressError(f"{url.host} is {reason}, which is never connected to")
            if self._session is None:
                connector = aiohttp.TCPConnector(limit=0, resolver=ThreadPerLookup(), socket_factory=_kept_alive)
                self._session = open_session(connector, _HEADERS)
            response = await self._session.get(url, params=dict(query), allow_redirects=False, **options)
            if response.status == 200:
                return response
            async with response:
                body = await _capped(response, MAX_STATUS_BYTES)
        except FAILURES as error:
            raise _unreachable(error, account.server) from error
        raise _refused(response, body, action)


async def _capped(response: aiohttp.ClientResponse, cap_bytes: int) -> bytes:
    """Return the body, up to one chunk more than `cap_bytes` of it."""
    chunks, size = [], 0
    while size <= cap_bytes and (chunk := await response.content.readany()):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def _refused(response: aiohttp.ClientResponse, body: bytes, action: str) -> KubeError:
    status, server = response.status, shown(response.url.origin())
    message = body[:300].decode(errors="replace").strip()
    with suppress(ValueError, RecursionError):  # of a `Status` object its message
        document = json.loads(body)
        message = str(document.get("message", "")) if isinstance(document, dict) else ""
    detail = f" (it says: {brief(message, 300)})" if message else ""
    sentence = f"{server} answered {status} to {action}{detail}"
    if 300 <= status < 400:
        sentence = f"{server} answered with a redirect, which is not followed; is a proxy between?"
    elif status == 401:
        sentence = f"the API server {server} does not accept our credentials (401){detail}"
    return _TYPES.get(status, StatusError)(sentence, status, message)


def _unreachable(error: BaseException, server: str) -> SourceError:
    failure = request_failure(error, brief(server, 80), "the cluster's CA")
    if isinstance(failure, UnreachableError):
        return failure.saying(f"no connection to the API server: {failure}; do network policies let us through?")
    return failure.saying(f"the API server cannot be reached: {failure}")


def _kept_alive(info: tuple[Any, ...]) -> socket.socket:
    """Return a socket for an address as `getaddrinfo` gives it."""
    made = socket.socket(*info[:3])
    for option, value in _KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
