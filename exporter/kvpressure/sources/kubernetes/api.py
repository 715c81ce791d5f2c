"""The connection to the API server: lightkube's configuration, TLS and credentials; our own list and watch on it.

lightkube's own `watch` has no deadline, waits inside an error handler and cannot ask for bookmarks' timeouts; its
typed models read a pod whole or raise. Only its public client (`prepare`d requests, raw answers) is used, and each
object is decoded by itself into plain mappings, reduced, and dropped. Loaded when Kubernetes is on, and not before.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httpx2
import msgspec
from lightkube.config.client_adapter import ConnectionParams, verify_cluster
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError
from lightkube.core.generic_client import BasicRequest, GenericAsyncClient

from kvpressure.config.settings import read_text
from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.config.strict_yaml import loose
from kvpressure.sources.base import SourceError, brief
from kvpressure.sources.kubernetes.transport import Gone, Page, RefusedError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_KUBECONFIG_BYTES: Final = 4 << 20
MAX_PAGE_BYTES: Final = 32 << 20
MAX_LINE_BYTES: Final = 4 << 20
MAX_STATUS_BYTES: Final = 64 << 10
MAX_VALUES: Final = 30_000
"""Of one object, counted before they are made: each takes a hundred bytes or two in memory, and took two to send."""
_MAX_OBJECT_BYTES: Final = 1 << 20
_SMALL_OBJECT_BYTES: Final = 64 << 10

_UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NO_TIMEOUTS: Final = httpx2.Timeout(None)
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""A watch may be silent for minutes; so that a peer that vanished is noticed within one."""


class _ListMeta(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion", default="")
    next_page: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    kind: str
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Name(msgspec.Struct):
    metadata: _Meta


def connection_config(settings: KubernetesSettings) -> SingleConfig:
    """How to reach the API server: the kubeconfig of the settings, else this pod's service account.

    Raises SourceError.
    """
    file = settings.kubeconfig_file
    try:
        found = (_from_file(file) if file else KubeConfig.from_service_account(SERVICE_ACCOUNT)).get()
        if found is None or found.user is None or not urlsplit(found.cluster.server).hostname:
            raise ValueError("it names no server, or no user for it")
    except Exception as error:
        # Whatever a broken file makes the parser raise: YAML, missing keys, wrong types.
        where = f"the kubeconfig {file}" if file else "this pod's service account"
        fix = "check the file" if file else "set kubernetes.kubeconfig_file when not running in a pod"
        raise SourceError("config", f"cannot use {where}: {brief(error)}; {fix}") from error
    return found


def _from_file(file: Path) -> KubeConfig:
    text = read_text(file, max_bytes=MAX_KUBECONFIG_BYTES)
    return KubeConfig.from_dict(loose(text, str(file), max_chars=MAX_KUBECONFIG_BYTES), fname=file)


class Api:
    """A `transport.Transport` over lightkube. Its requests have no deadline but that of whoever awaits them."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._client: Any = None  # lightkube's GenericAsyncClient, whose methods have no types
        self._where = "the API server"

    async def page(self, path: str, params: Mapping[str, str]) -> Page:
        """One page of a list."""
        response = await self._send(path, params)
        try:
            body = await _body(response, MAX_PAGE_BYTES, self._where)
            answer = msgspec.json.decode(body, type=_List)
            if not answer.kind.endswith("List"):  # taken for a list, it would be an empty one
                raise msgspec.DecodeError(f"a {answer.kind}")
        except _UNDECODABLE as error:
            sentence = f"{self._where} answered {path} with something that is not a list: {brief(error)}"
            raise SourceError("garbage", sentence) from error
        except (httpx2.HTTPError, OSError) as error:
            await self._drop()
            raise _explain(error, self._where) from error
        finally:
            await _close(response)
        return Page(answer.metadata.version, answer.metadata.next_page, _decoded(answer.items or []))

    async def watch(self, path: str, params: Mapping[str, str]) -> Watch:
        """Open a watch."""
        response = await self._send(path, {**params, "watch": "1"})
        return Watch(response, self._where)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._drop()

    async def _send(self, path: str, params: Mapping[str, str]) -> httpx2.Response:
        client = self._opened()
        request = BasicRequest("GET", path, params=dict(params), timeout=_NO_TIMEOUTS)
        try:
            response: httpx2.Response = await client.send(client.build_adapter_request(request), stream=True)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ConfigError, ValueError) as error:
            await self._drop()
            raise _explain(error, self._where) from error
        if response.status_code == 200:
            return response
        try:
            await self._refuse(response, path)
        finally:
            await _close(response)
        raise AssertionError("unreachable")

    async def _refuse(self, response: httpx2.Response, path: str) -> None:
        status = response.status_code
        message = ""
        with suppress(httpx2.HTTPError, OSError, SourceError, *_UNDECODABLE):
            answer = msgspec.json.decode(await _body(response, MAX_STATUS_BYTES, self._where))
            message = brief(answer["message"]) if isinstance(answer, dict) and "message" in answer else ""
        if status == 410:
            raise Gone
        if status == 401:
            await self._drop()
            raise RefusedError("unauthorized", f"{self._where} does not accept our credentials (401)", message)
        if status == 403:
            raise RefusedError("forbidden", f"{self._where} refuses {path} (403)", message)
        if status == 404:
            sentence = f"{self._where} has no {path} (404); is that the address of a Kubernetes API server?"
            raise SourceError("http_status", sentence)
        told = f": {message}" if message else ""
        raise SourceError("http_status", f"{self._where} answered {path} with status {status}{told}")

    def _opened(self) -> Any:
        if self._client is None:
            config = connection_config(self._settings)
            self._where = f"the API server {brief(urlsplit(config.cluster.server).netloc.rpartition('@')[2], 80)}"
            try:
                context = verify_cluster(config.cluster, config.user or User(), config.abs_file, trust_env=False)
                transport = httpx2.AsyncHTTPTransport(verify=context, trust_env=False, socket_options=_KEEPALIVE)
                params = ConnectionParams(timeout=_NO_TIMEOUTS, trust_env=False, transport=cast(Any, transport))
                self._client = GenericAsyncClient(params, config)
            except (OSError, ValueError, TypeError, ConfigError, httpx2.InvalidURL) as error:
                sentence = f"cannot use the certificates or the address of {self._where}: {brief(error)}"
                raise SourceError("config", sentence) from error
        return self._client

    async def _drop(self) -> None:
        # The next attempt reads kubeconfig, certificates and token anew: any of them may have been the reason.
        client, self._client = self._client, None
        if client is not None:
            with suppress(httpx2.HTTPError, OSError):
                await client.close()


class Watch:
    """An open watch; a `transport.Stream`."""

    def __init__(self, response: httpx2.Response, where: str) -> None:
        self._response = response
        self._where = where

    async def events(self) -> AsyncGenerator[tuple[str, Mapping[str, Any] | None], None]:
        """Kind and object of each event."""
        async with aclosing(self._lines()) as lines:
            async for line in lines:
                if line.strip():
                    yield self._event(line)

    async def aclose(self) -> None:
        """Close the connection."""
        await _close(self._response)

    def _event(self, line: bytes) -> tuple[str, Mapping[str, Any] | None]:
        try:
            event = msgspec.json.decode(line, type=_Event)
        except _UNDECODABLE as error:
            sentence = f"{self._where} sent a line in a watch that is not an event: {brief(error)}"
            raise SourceError("garbage", sentence) from error
        found = _object(event.object)
        if event.type == "ERROR":
            self._fail(found or {})
        return event.type, found

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        rest = b""
        # A connection that breaks is an ordinary end of a watch: the next one goes on where this one was.
        with suppress(httpx2.HTTPError, OSError):
            async for chunk in self._response.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    sentence = f"{self._where} sent more than {MAX_LINE_BYTES >> 20} MiB as one event of a watch"
                    raise SourceError("too_large", sentence)
                for line in lines:
                    yield line

    def _fail(self, status: Mapping[str, Any]) -> None:
        if status.get("code") == 410 or status.get("reason") in ("Expired", "Gone"):
            raise Gone
        sentence = f"{self._where} ended a watch with an error: {brief(status.get('message', 'without a message'))}"
        raise SourceError("watch_error", sentence)


def _decoded(items: list[msgspec.Raw]) -> Iterator[Mapping[str, Any] | None]:
    for raw in items:
        yield _object(raw)


def _object(raw: msgspec.Raw) -> Mapping[str, Any] | None:
    try:
        if _is_too_much(raw):
            return {"metadata": msgspec.to_builtins(msgspec.json.decode(raw, type=_Name).metadata)}
        found = msgspec.json.decode(raw)
    except _UNDECODABLE:
        return None
    return found if isinstance(found, dict) else None


def _is_too_much(raw: msgspec.Raw) -> bool:
    size = len(memoryview(raw))
    if size <= _SMALL_OBJECT_BYTES or size > _MAX_OBJECT_BYTES:
        return size > _MAX_OBJECT_BYTES
    text = bytes(raw)
    return sum(map(text.count, (b",", b"[", b"{"))) > MAX_VALUES


async def _body(response: httpx2.Response, cap: int, where: str) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > cap:
            raise SourceError("too_large", f"{where} answered with more than {cap >> 10} KiB")
    return bytes(body)


async def _close(response: httpx2.Response) -> None:
    with suppress(httpx2.HTTPError, OSError):
        await response.aclose()


def _explain(error: BaseException, where: str) -> SourceError:
    causes, cause = [error], error.__cause__ or error.__context__
    while cause is not None and len(causes) < 8:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, (ConfigError, ValueError, httpx2.InvalidURL)):
        return SourceError("config", f"cannot use the credentials for {where}: {brief(error)}")
    if tls := next((found for found in causes if isinstance(found, ssl.SSLError)), None):
        return SourceError("tls", f"no TLS with {where}: {brief(tls)}; check the cluster's CA and the server's name")
    if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout)):
        sentence = (
            f"no connection to {where}: {brief(_plain(causes))}; is it up, and do network policies let us through?"
        )
        return SourceError("unreachable", sentence)
    return SourceError("connection", f"the connection to {where} broke: {brief(_plain(causes))}")


def _plain(causes: list[BaseException]) -> str:
    # "All connection attempts failed" hides the reason, which the innermost error has.
    text = next((str(found) for found in reversed(causes) if isinstance(found, OSError) and str(found)), str(causes[0]))
    return re.sub(r"^\[Errno -?\d+\] ", "", text) or type(causes[0]).__name__
