"""One keep-alive connection to one server: GET, with limits on untrusted responses.

No redirects, no proxies from the environment, no cookies, no compression, a limit on the body while it is received.
aiohttp itself repeats a request at once when the server closed an idle connection (decision 0010).
"""

from __future__ import annotations

import errno
import functools
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
from yarl import URL

from kvpressure.model.errors import (
    BadUrlError,
    DnsError,
    RefusedConnectionError,
    SourceError,
    TimedOutError,
    TlsError,
    TooLargeError,
    TruncatedError,
    UnreachableError,
)
from kvpressure.model.record import record
from kvpressure.model.target_status import http_reason
from kvpressure.net.addresses import refusal
from kvpressure.net.credentials import Authorization, TlsFiles, TlsOptions, tls_context, tls_files
from kvpressure.net.resolver import RefusedAddressError, ThreadPerLookup
from kvpressure.net.schedule import Clock
from kvpressure.net.urls import refused_text
from kvpressure.net.waiting import StallTolerantTimeout
from kvpressure.printable import brief

MAX_BODY_BYTES: Final = 8 * 1024 * 1024

_HEADERS: Final = {
    "User-Agent": "kvpressure",
    "Accept": "text/plain;version=0.0.4;q=1,*/*;q=0.1",
    "Accept-Encoding": "identity",
}
_NO_TIMEOUTS: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_read=None, sock_connect=None)


class HttpStatusError(SourceError):
    """The server answered with a status other than 200."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.reason = status, "redirect" if 300 <= status < 400 else http_reason(status)


class DisconnectedError(SourceError, reason="disconnected"):
    """The server closed the connection without an answer."""


class NotHttpError(SourceError, reason="bad_http"):
    """What answers does not speak HTTP."""


class EncodedError(SourceError, reason="encoded"):
    """The answer is compressed, which was not requested."""


@record
class Answer:
    """The body of a 200 and when its head arrived, in unix seconds.

    A server renders its page before it sends the head, so `t` is close to when its values were read.
    """

    body: bytes
    t: float


class _Connector(aiohttp.TCPConnector):
    """Records whether a request is still connecting, for the error of a deadline."""

    connecting = False

    async def connect(self, *args: Any, **kwargs: Any) -> aiohttp.connector.Connection:
        self.connecting = True
        connection = await super().connect(*args, **kwargs)
        self.connecting = False
        return connection


class HttpClient:
    """Sends requests to one server. Use it from one task at a time, and `aclose` it."""

    def __init__(
        self, clock: Clock, *, tls: TlsOptions | None, authorization: Authorization, cap_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self._clock = clock
        self._tls = tls
        self._authorization = authorization
        self._cap_bytes = cap_bytes
        self._made_from: TlsFiles | None = None
        self._session: aiohttp.ClientSession | None = None
        self._connector: _Connector | None = None
        self._resolver = ThreadPerLookup()
        self._received: int | None = None
        self.requests = 0
        self.bytes_received = 0

    async def get(self, url: URL, seconds: float) -> Answer:
        """Return the response with status 200, complete within `seconds`.

        Raises `SourceError`, of which `HttpStatusError` for any other status; a timeout says what it waited for.
        """
        async with self._response(url, seconds) as (response, where, t):
            _check_head(response, where, self._cap_bytes)
            return Answer(await self._body(response, where), t)

    @asynccontextmanager
    async def _response(self, url: URL, seconds: float) -> AsyncIterator[tuple[aiohttp.ClientResponse, str, float]]:
        """Yield the response's head, the address for messages, and when the head arrived in unix seconds."""
        if url.scheme not in {"http", "https"} or not url.raw_host:
            raise BadUrlError("the address is not an http(s) address; check url and path")
        where, timeout = shown(url), StallTolerantTimeout(seconds)
        if reason := refusal(url.host or "", link_local=True):
            raise BadUrlError(f"{where} is {reason}, where no engine can be; nothing was sent")
        name = (self._tls.server_name or None) if self._tls and url.scheme == "https" else None
        options: dict[str, Any] = {"allow_redirects": False, "server_hostname": name}
        self._received = None
        try:
            async with timeout:
                options["ssl"] = await self._tls_context(url)
                value = self._authorization.value()
                options["headers"] = {"Authorization": value} if value else {}
                self.requests += 1
                try:
                    async with self._open_session().get(url, **options) as response:
                        self._received = 0
                        yield response, where, self._clock.wall()
                except (aiohttp.ClientError, OSError, ValueError) as error:
                    raise explain(error, where) from error
        except TimeoutError:
            raise self._timed_out(where, timeout) from None

    def _timed_out(self, where: str, timeout: StallTolerantTimeout) -> SourceError:
        """Return the error of a request that exceeded its deadline, with what it was waiting for."""
        seconds, excuse = f"{timeout.seconds:g} s", timeout.excuse()
        if self._resolver.pending:
            sentence = f"the name in {where} was not resolved within {seconds}{excuse}; is the DNS server up?"
            return DnsError(sentence)
        if self._connector is not None and self._connector.connecting:
            what = f"no connection to {where} within {seconds}{excuse}; is the address right and the port open to us?"
        elif self._received is None:
            what = f"connected to {where}, waited {seconds} for the page{excuse}; is the server hung or overloaded?"
        else:
            came = f"only {self._received:,} bytes of the page came within {seconds}"
            what = f"connected to {where}, but {came}{excuse}; is the server hung or overloaded?"
        return TimedOutError(what)

    async def aclose(self) -> None:
        """Close the connection; the next `get` opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _tls_context(self, url: URL) -> ssl.SSLContext | bool:
        if url.scheme != "https":
            return True
        files = tls_files(self._tls)
        context = tls_context(files)
        if files != self._made_from:
            # No request may use a connection with the old certificate after the change.
            await self.aclose()
            self._made_from = files
        return context

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._connector = _Connector(limit=1, resolver=self._resolver)
            self._session = open_session(self._connector, _HEADERS)
        return self._session

    async def _body(self, response: aiohttp.ClientResponse, where: str) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while chunk := await response.content.readany():
            size += len(chunk)
            self._received = size
            self.bytes_received += len(chunk)
            if size > self._cap_bytes:
                raise _too_large(where, self._cap_bytes)
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def open_session(connector: aiohttp.BaseConnector, headers: Mapping[str, str]) -> aiohttp.ClientSession:
    """Return a session that keeps no cookies, unpacks nothing, and has no proxy or timeout of its own."""
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        timeout=_NO_TIMEOUTS,
        auto_decompress=False,
        trust_env=False,
    )


@functools.lru_cache(maxsize=1024)
def shown(url: URL) -> str:
    """Return the URL for a message: no user, no password, no query."""
    return brief(url.with_user(None).with_query(None).human_repr(), 200)


def _too_large(where: str, cap_bytes: int) -> SourceError:
    mebibytes = cap_bytes / 1024 / 1024
    return TooLargeError(f"{where} answered with more than {mebibytes:g} MiB; is this a metrics page?")


def _check_head(response: aiohttp.ClientResponse, where: str, cap_bytes: int) -> None:
    status = response.status
    if 300 <= status < 400:
        url = brief(response.headers.get("Location", "nowhere").split("?")[0].rpartition("@")[2], 120)
        sentence = f"{where} answered {status}, a redirect to {url}; redirects are not followed: set the final address"
        raise HttpStatusError(status, sentence)
    if status != 200:
        hint = {401: "; check the credentials", 403: "; check the credentials", 404: "; check the path"}.get(status, "")
        raise HttpStatusError(status, f"{where} answered {status} {brief(response.reason or '', 60)}".rstrip() + hint)
    _check_body(response, where, cap_bytes)


def _check_body(response: aiohttp.ClientResponse, where: str, cap_bytes: int) -> None:
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        what = f"answered with content encoding {brief(encoding, 40)}, and none was requested"
        raise EncodedError(f"{where} {what}; does a proxy compress it?")
    if (response.content_length or 0) > cap_bytes:
        raise _too_large(where, cap_bytes)


def explain(error: Exception, where: str) -> SourceError:
    """Return the `SourceError` for an error of aiohttp, ssl or the system in a request to `where`."""
    if isinstance(error, ssl.SSLError | aiohttp.ClientSSLError) or "[SSL" in str(error):
        inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
        detail = brief(getattr(inner, "verify_message", "") or getattr(inner, "reason", "") or inner, 120)
        return TlsError(f"TLS with {where} failed: {detail}; check scheme, CA and certificates")
    if isinstance(error, aiohttp.ClientConnectorError):
        return _not_connected(error, where)
    if isinstance(error, aiohttp.ClientPayloadError):
        return TruncatedError(f"the answer of {where} was cut short; is something between us cutting it?")
    if isinstance(error, aiohttp.ClientResponseError):
        return NotHttpError(f"{where} does not answer in HTTP: {brief(error.message, 80)}; check the port")
    if isinstance(error, ValueError):
        return BadUrlError(f"{where} is not a valid address; check url and path")
    # TLS 1.3 servers reject a client without a certificate only after the handshake, by closing the connection.
    hint = "does it demand a client certificate?" if where.startswith("https:") else "is the server failing?"
    return DisconnectedError(f"{where} closed the connection without an answer; {hint}")


def _not_connected(error: aiohttp.ClientConnectorError, where: str) -> SourceError:
    system = error.os_error
    if isinstance(system, RefusedAddressError):
        return BadUrlError(f"the name in {where} leads to {brief(system)}; nothing was sent")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        why = brief(system.strerror or system, 80)
        return DnsError(f"the name in {where} does not resolve ({why}); check the address")
    # With several addresses the text names each, and ::1 may have no route.
    text = str(system).lower()
    if isinstance(system, ConnectionRefusedError) or "refused" in text or f"[errno {errno.ECONNREFUSED}]" in text:
        return RefusedConnectionError(refused_text(where))
    return UnreachableError(f"cannot connect to {where}: {brief(system.strerror or system, 100)}")
