"""One reflector's connection to the API server; after an error it is replaced, with credentials read again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Final, NoReturn

import aiohttp

from kvpressure.kubernetes import Action, GoneError, KubeError, UnauthorizedError
from kvpressure.kubernetes.client import KubeClient, capped
from kvpressure.kubernetes.objects import Object
from kvpressure.kubernetes.objects.wire import MAX_OBJECT_BYTES, Page, read_object, read_page
from kvpressure.kubernetes.service_account import ServiceAccount, service_account
from kvpressure.kubernetes.watch.resource import SHARE, Resource
from kvpressure.model.errors import GarbageError, TooLargeError
from kvpressure.net.outgoing import FAILURES
from kvpressure.net.threads import on_share
from kvpressure.printable import brief

MAX_PAGE_BYTES: Final = 32 << 20
MAX_LINE_BYTES: Final = 4 << 20
MAX_MAP_BYTES: Final = MAX_OBJECT_BYTES
"""The API server stores at most a mebibyte; a ConfigMap that is larger as JSON is not read."""


def own_account() -> ServiceAccount:
    """Return this pod's service account. Raises KubeError."""
    account = service_account()
    if account is None:
        raise KubeError(
            "there is no service account here, with which the API server is asked: run in a pod that has one, or name "
            "engines by engines.targets or engines.file_sd when not in a pod"
        )
    return account


class Connection:
    """Lists and watches without deadlines but the caller's. Raises SourceError, GoneError for a 410."""

    def __init__(self) -> None:
        self._client: KubeClient | None = None

    async def page(self, resource: Resource, query: Mapping[str, str]) -> Page:
        """Return one page of a list."""
        client = self._opened()
        too_large = f"the API server {client.where} answered with more than {MAX_PAGE_BYTES >> 20} MiB"
        body = await self._body(client, f"/{resource.path}", resource.action("list"), query, MAX_PAGE_BYTES, too_large)
        try:
            return await on_share(SHARE, read_page, body)
        except ValueError as error:
            sentence = f"the API server {client.where} answered /{resource.path} with something that is not a list"
            raise GarbageError(f"{sentence}: {brief(error)}") from error

    async def config_map(self, namespace: str, name: str) -> Object:
        """Return one ConfigMap."""
        client, action = self._opened(), Action("get", "configmaps", namespace, name)
        path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        too_large = f"ConfigMap {name} in namespace {namespace} takes more than {MAX_MAP_BYTES >> 20} MiB as JSON"
        body = await self._body(client, path, action, {}, MAX_MAP_BYTES, too_large)
        if (config_map := await on_share(SHARE, read_object, body)) is None:
            sentence = f"the API server {client.where} answered to {action} with something that is no object"
            raise GarbageError(sentence)
        return config_map

    async def _body(
        self, client: KubeClient, path: str, action: Action, query: Mapping[str, str], cap_bytes: int, too_large: str
    ) -> bytes:
        try:
            async with await client.open(path, action, query) as response:
                body = await capped(response, cap_bytes)
        except (KubeError, *FAILURES) as error:
            await self._fail(error, client)
        if len(body) > cap_bytes:
            raise TooLargeError(too_large)
        return body

    async def watch(self, resource: Resource, query: Mapping[str, str]) -> Watch:
        """Open a watch."""
        client = self._opened()
        try:
            response = await client.open(f"/{resource.path}", resource.action("watch"), {**query, "watch": "1"})
        except (KubeError, *FAILURES) as error:
            await self._fail(error, client)
        return Watch(response, client.where)

    async def aclose(self) -> None:
        """Close every connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _opened(self) -> KubeClient:
        if self._client is None:
            self._client = KubeClient(own_account())
        return self._client

    async def _fail(self, error: BaseException, client: KubeClient) -> NoReturn:
        """Raise the error that the exporter's page shows."""
        if isinstance(error, GoneError):
            raise error
        # The CA is read again for the next request, as the token always is: either may be the reason.
        await self.aclose()
        if isinstance(error, UnauthorizedError):
            raise error.saying(f"the API server {client.where} does not accept our credentials (401)") from error
        if isinstance(error, KubeError):
            raise error
        raise client.unreachable(error) from error


class Watch:
    """An open watch."""

    def __init__(self, response: aiohttp.ClientResponse, where: str) -> None:
        self._response, self._where = response, where

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield the events as lines until the server or the network ends the watch. Raises TooLargeError."""
        rest = b""
        # A broken connection is an ordinary end of a watch: the next one continues from its version.
        with suppress(aiohttp.ClientError, OSError):
            while chunk := await self._response.content.readany():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    sentence = f"the API server {self._where} sent more than {MAX_LINE_BYTES >> 20} MiB as one event"
                    raise TooLargeError(sentence)
                for line in filter(bytes.strip, lines):
                    yield line

    def close(self) -> None:
        """Close the connection."""
        self._response.close()
