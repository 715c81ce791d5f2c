"""Queries to the API that Prometheus, Thanos, Mimir and VictoriaMetrics share; every failure is a `PrometheusError`.

`/api/v1/query`, `/api/v1/query_range`, `/api/v1/series` and `/api/v1/label/NAME/values`, below whatever path the URL
ends in (Mimir: `/prometheus`).
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from kvpressure.net.addresses import refusal
from kvpressure.net.credentials import TlsOptions, tls_context, tls_files
from kvpressure.net.http import open_session
from kvpressure.net.outgoing import FAILURES, environment_proxy, is_supported
from kvpressure.net.resolver import ThreadPerLookup
from kvpressure.printable import brief
from kvpressure.prometheus.answers import (
    MAX_SERIES,
    BusyError,
    NoSamplesError,
    PrometheusError,
    Samples,
    TooManyError,
    TooMuchError,
    connection_error,
    labels_of,
    read_answer,
    refusal_of,
)

LARGEST_ANSWER_BYTES: Final = 24 << 20
"""Of JSON, unpacked; in memory it is several times as much, see `answers`."""
LARGEST_REFUSAL_BYTES: Final = 64 << 10
DEADLINE_SECONDS: Final = 120.0
"""For one request: name lookup, connection, and the whole response."""
CONNECT_SECONDS: Final = 10.0
ATTEMPTS: Final = 4
FIRST_WAIT_SECONDS: Final = 1.0
LONGEST_WAIT_SECONDS: Final = 120.0
"""However long a server's Retry-After is."""

NOTICING_STEPS: Final = 4
"""Of the loop, which does not run between queries, until it knows which connections the server has closed since."""

MAX_WARNINGS: Final = 100
_HEADERS: Final = {"User-Agent": "kvpressure", "Accept": "application/json", "Accept-Encoding": "gzip"}
_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)


@dataclass(frozen=True, slots=True)
class Server:
    """A Prometheus and its credentials. `headers` are sent with every request, `tls` is None for the system's CAs.

    Only `url` is ever stored or shown.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: TlsOptions | None = None
    deadline_seconds: float = DEADLINE_SECONDS


class Prometheus:
    """One server. Use it as a context manager; for one thread. Redirects are refused and answers are bounded."""

    def __init__(self, server: Server, *, wait: Callable[[float], None] = time.sleep) -> None:
        self._url = _base(server.url)
        self._headers = dict(server.headers)
        self._wait = wait
        self._shown = brief(self._url, 200)
        self._tls = tls_context(tls_files(server.tls)) if self._url.startswith("https://") else True
        self._proxy = _proxy(self._url)
        self._session: aiohttp.ClientSession | None = None
        # A loop, because only asyncio has a deadline for a whole response, however slowly it comes.
        self._loop = asyncio.Runner()
        self.deadline_seconds = server.deadline_seconds
        self.received_bytes = 0
        """Of response bodies, decompressed."""
        self.warnings: dict[str, None] = {}
        """The server's warnings, each once."""

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._loop.run(self._session.close())
        self._loop.close()

    def range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Return the series of a range query, each with `metric` and `values`. Raises PrometheusError."""
        parameters = {"query": expr, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._series("/api/v1/query_range", parameters, "matrix")

    def raw(self, selector: str, end: float, seconds: float) -> list[dict[str, Any]]:
        """Return the samples as they were scraped, with their own times, of the `seconds` up to `end`.

        Raises PrometheusError.
        """
        # An instant query for a range selector returns the stored samples.
        parameters = {"query": f"{selector}[{max(1, round(seconds * 1000))}ms]", "time": f"{end:.3f}"}
        return self._series("/api/v1/query", parameters, "matrix")

    def instant(self, expr: str, t: float) -> list[dict[str, Any]]:
        """Return the series of an instant query, each with `metric` and `value`. Raises PrometheusError."""
        return self._series("/api/v1/query", {"query": expr, "time": f"{t:.3f}"}, "vector")

    def label_values(self, label: str, matchers: Sequence[str], start: float, end: float) -> list[str]:
        """Return the values of a label among the series that match. Raises PrometheusError."""
        values = self._listed(f"/api/v1/label/{label}/values", matchers, start, end, post=False)
        return [value for value in values if isinstance(value, str)]

    def series(self, matchers: Sequence[str], start: float, end: float) -> list[dict[str, str]]:
        """Return the labels of the series that match and have samples in that time. Raises PrometheusError."""
        label_sets = self._listed("/api/v1/series", matchers, start, end, post=True)
        return [labels_of(labels) for labels in label_sets if isinstance(labels, dict)]

    def _listed(self, path: str, matchers: Sequence[str], start: float, end: float, *, post: bool) -> list[Any]:
        """Return a listing, which no server splits into pages: one that is cut at the limit is an error."""
        parameters = {
            "match[]": list(matchers),
            "start": f"{start:.3f}",
            "end": f"{end:.3f}",
            "limit": str(MAX_SERIES + 1),
        }
        entries, _ = self._query(path, parameters, post=post)
        if isinstance(entries, list) and len(entries) > MAX_SERIES:
            raise self._too_many(path, f"it lists more than {MAX_SERIES:,}")
        return entries if isinstance(entries, list) else []

    def _series(self, path: str, parameters: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
        entries, samples = self._query(path, parameters)
        if not isinstance(entries, dict) or entries.get("resultType") != kind:
            raise PrometheusError(f"{self._shown} answered {path} with something that is no {kind}")
        try:
            return [_series(entry, kind, samples) for entry in entries.get("result") or ()]
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            raise self._garbage(path, error) from error

    def _query(self, path: str, parameters: Mapping[str, Any], *, post: bool = True) -> tuple[Any, list[Samples]]:
        """Return the data and the samples of a response; the query is repeated after a while where that may help."""
        wait = FIRST_WAIT_SECONDS
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._once(path, parameters, post=post)
            except BusyError as error:
                if attempt == ATTEMPTS:
                    raise PrometheusError(f"{error.sentence} ({ATTEMPTS} attempts)") from error
                self._wait(max(wait, min(error.wait_seconds, LONGEST_WAIT_SECONDS)))
                wait *= 4
        raise AssertionError("unreachable")

    def _once(self, path: str, parameters: Mapping[str, Any], *, post: bool) -> tuple[Any, list[Samples]]:
        try:
            status, retry_after, body = self._loop.run(self._exchange(path, dict(parameters), post=post))
        except TimeoutError as error:
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise connection_error(error, self._shown) from error
            sentence = f"{self._shown} did not answer {path} within {self.deadline_seconds:.0f} s"
            raise TooMuchError(f"{sentence}; narrow --selector or --since") from error
        except FAILURES as error:
            raise connection_error(error, self._shown) from error
        if status == 405 and post:
            return self._once(path, parameters, post=False)
        if status != 200:
            refused = refusal_of(status, body, self._shown, path, sent=bool(self._headers))
            if isinstance(refused, BusyError) and retry_after.isdecimal():
                refused.wait_seconds = float(retry_after[:9])
            raise refused
        return self._data(body, path)

    async def _exchange(self, path: str, given: Mapping[str, Any], *, post: bool) -> tuple[int, str, bytes]:
        """Return status, Retry-After and body of a response. Raises TimeoutError where it is not complete in time."""
        for _ in range(NOTICING_STEPS):
            await asyncio.sleep(0)
        if self._session is None:
            self._session = open_session(aiohttp.TCPConnector(resolver=ThreadPerLookup()), _HEADERS)
        options: dict[str, Any] = {"ssl": self._tls, "proxy": self._proxy or None, "timeout": _TIMEOUT}
        options |= {"headers": self._headers, "data" if post else "params": given}
        method, url = "POST" if post else "GET", self._url + path
        async with (
            asyncio.timeout(self.deadline_seconds),
            self._session.request(method, url, allow_redirects=False, **options) as response,
        ):
            return response.status, response.headers.get("Retry-After", ""), await self._body(response)

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        """Return at most LARGEST_ANSWER_BYTES of it, decompressed: a kilobyte may become a megabyte."""
        most = LARGEST_ANSWER_BYTES if response.status == 200 else LARGEST_REFUSAL_BYTES
        packed = response.headers.get("Content-Encoding", "").strip().lower() == "gzip"
        unpack = zlib.decompressobj(16 + zlib.MAX_WBITS) if packed else None
        body = bytearray()
        async for chunk in response.content.iter_any():
            try:
                body += chunk if unpack is None else unpack.decompress(chunk, most + 1 - len(body))
            except zlib.error as error:
                raise aiohttp.ClientPayloadError(brief(error)) from error
            if len(body) > most:
                break
        self.received_bytes += len(body)
        if len(body) > most and response.status == 200:
            sentence = f"one answer of {self._shown} is larger than {LARGEST_ANSWER_BYTES >> 20} MiB"
            raise TooMuchError(f"{sentence}; narrow --selector")
        return bytes(body[:most])

    def _data(self, body: bytes, path: str) -> tuple[Any, list[Samples]]:
        try:
            data, samples = read_answer(body)
        except TooManyError as error:
            raise self._too_many(path, str(error)) from error
        except NoSamplesError as error:
            raise self._garbage(path, error) from error
        except ValueError as error:
            sentence = f"{self._shown}{path} answered something that is no JSON"
            raise PrometheusError(f"{sentence}; is it a Prometheus, and is its path complete?") from error
        if not isinstance(data, dict) or data.get("status") != "success":
            raise PrometheusError(f"{self._shown}{path} answered JSON that is no answer of a Prometheus")
        warnings = data.get("warnings")
        for warning in warnings if isinstance(warnings, list) else ():
            if len(self.warnings) < MAX_WARNINGS:
                self.warnings[brief(warning, 300)] = None
        return data.get("data"), samples

    def _garbage(self, path: str, error: Exception) -> PrometheusError:
        sentence = f"{self._shown} answered {path} with series that are none: {brief(error)}; is it a Prometheus?"
        return PrometheusError(sentence)

    def _too_many(self, path: str, why: str) -> TooMuchError:
        text = f"{self._shown} answered {path} with too much at once: {why}; narrow --selector, --cluster or --since"
        return TooMuchError(text)


def _series(entry: Mapping[str, Any], kind: str, samples: Sequence[Samples]) -> dict[str, Any]:
    """Return a series with numbers for its times and values. Raises TypeError, ValueError etc. for anything else."""
    metric = labels_of(entry.get("metric") or {})
    if kind == "vector":
        t, value = entry["value"]
        return {"metric": metric, "value": (float(t), float(value))}
    values = entry.get("values", ())
    return {"metric": metric, "values": samples[int(values)] if isinstance(values, float) else Samples.of(values)}


def _proxy(url: str) -> str:
    """Return the environment's proxy for a URL, "" for none. Raises PrometheusError unless it is an HTTP one."""
    parts = urlsplit(url)
    proxy = environment_proxy(parts.scheme, parts.hostname or "")
    if not is_supported(proxy):
        raise PrometheusError(f"the proxy for {brief(parts.hostname)} is not an http or https proxy")
    return proxy


def _base(url: str) -> str:
    """Return the URL without the API's path. Raises PrometheusError for one that cannot be queried."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise PrometheusError(f"--prometheus is no URL: {brief(error)}") from error
    if parts.username is not None or parts.password is not None:
        sentence = "--prometheus must not hold credentials, which would be shown"
        raise PrometheusError(f"{sentence}: use basic_auth or authorization of --http.config.file")
    if parts.scheme not in ("http", "https") or not host:
        raise PrometheusError(f"--prometheus must be http://HOST:PORT or https://..., got {brief(url)}")
    if reason := refusal(host, link_local=True):
        raise PrometheusError(f"{brief(host)} is {reason}, which is never queried")
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/").removesuffix("/api/v1")
