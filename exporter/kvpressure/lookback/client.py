"""Questions to the API that Prometheus, Thanos, Mimir and VictoriaMetrics share; every failure is a `PrometheusError`.

`/api/v1/query`, `/api/v1/query_range`, `/api/v1/series` and `/api/v1/label/NAME/values`, below whatever path the URL
ends in (Mimir: `/prometheus`).
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from kvpressure.lookback.errors import BusyError, PrometheusError, TooMuchError
from kvpressure.lookback.refusals import connection_error, refusal_of
from kvpressure.net.addresses import refusal
from kvpressure.net.credentials import TlsOptions, tls_context, tls_files
from kvpressure.printable import brief

LARGEST_ANSWER_BYTES: Final = 24 << 20
"""Of JSON; in memory it is several times as much."""
DEADLINE_SECONDS: Final = 120.0
ATTEMPTS: Final = 4
FIRST_WAIT_SECONDS: Final = 1.0
LONGEST_WAIT_SECONDS: Final = 120.0
"""However long a server wants to be left alone."""

MOST_WARNINGS: Final = 100
_USED: Final = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class Server:
    """A Prometheus, and how to be let in. `headers` are sent with every request, `tls` is None for the system's CAs.

    Nothing of it is ever written down or shown but `url`.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: TlsOptions | None = None
    deadline_seconds: float = DEADLINE_SECONDS


@dataclass(slots=True)
class Asked:
    """What one client has asked so far: requests, bytes of answers, and the servers' own warnings, each once."""

    requests: int = 0
    received_bytes: int = 0
    warnings: dict[str, None] = field(default_factory=dict)


class Prometheus:
    """One server. Use it as a context manager; for one thread. Redirects are refused and answers are bounded."""

    def __init__(self, server: Server, *, wait: Callable[[float], None] = time.sleep) -> None:
        self._url, self._headers = _base(server.url), dict(server.headers)
        self._wait = wait
        context = tls_context(tls_files(server.tls)) if self._url.startswith("https://") else False
        self._http = httpx2.Client(
            verify=context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # without TLS it is not used
            timeout=httpx2.Timeout(server.deadline_seconds, connect=10.0),
            headers={"User-Agent": "kvpressure", "Accept": "application/json", "Accept-Encoding": "gzip"},
            follow_redirects=False,
        )
        self.deadline_seconds = server.deadline_seconds
        self.asked = Asked()

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The series of a range query, each with `metric` and `values`. Raises PrometheusError."""
        asked = {"query": expr, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._series("/api/v1/query_range", asked, "matrix")

    def raw(self, selector: str, end: float, seconds: float) -> list[dict[str, Any]]:
        """The samples as they were scraped, with their own times, of the `seconds` up to `end`.

        Raises PrometheusError.
        """
        # An instant query whose expression is a range selector is answered with what was stored.
        asked = {"query": f"{selector}[{max(1, round(seconds * 1000))}ms]", "time": f"{end:.3f}"}
        return self._series("/api/v1/query", asked, "matrix")

    def instant(self, expr: str, t: float) -> list[dict[str, Any]]:
        """The series of an instant query, each with `metric` and `value`. Raises PrometheusError."""
        return self._series("/api/v1/query", {"query": expr, "time": f"{t:.3f}"}, "vector")

    def label_values(self, label: str, matchers: Sequence[str], start: float, end: float) -> list[str]:
        """The values of a label among the series that match. Raises PrometheusError."""
        asked = {"match[]": list(matchers), "start": f"{start:.3f}", "end": f"{end:.3f}"}
        found = self._asked(f"/api/v1/label/{label}/values", asked, post=False)
        return [str(value) for value in found] if isinstance(found, list) else []

    def series(self, matchers: Sequence[str], start: float, end: float) -> list[dict[str, str]]:
        """The labels of the series that match and have samples in that time. Raises PrometheusError."""
        found = self._asked("/api/v1/series", {"match[]": list(matchers), "start": f"{start:.3f}", "end": f"{end:.3f}"})
        return [_labels(one) for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def _series(self, path: str, asked: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
        found = self._asked(path, asked)
        if not isinstance(found, dict) or found.get("resultType") != kind:
            raise PrometheusError("garbage", f"{self._shown} answered {path} with something that is no {kind}")
        try:
            return [_series(one, kind) for one in found.get("result") or ()]
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            text = f"{self._shown} answered {path} with series that are none: {brief(error)}"
            raise PrometheusError("garbage", text) from error

    def _asked(self, path: str, asked: Mapping[str, Any], *, post: bool = True) -> Any:
        """Asks, and again after a while where that may help."""
        wait = FIRST_WAIT_SECONDS
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._once(path, asked, post=post)
            except BusyError as error:
                if attempt == ATTEMPTS:
                    raise PrometheusError(error.reason, f"{error.sentence} ({ATTEMPTS} attempts)") from error
                self._wait(max(wait, min(error.wait_seconds, LONGEST_WAIT_SECONDS)))
                wait *= 4
        raise AssertionError("unreachable")

    def _once(self, path: str, asked: Mapping[str, Any], *, post: bool) -> Any:
        self.asked.requests += 1
        until = time.monotonic() + self.deadline_seconds
        given, url = dict(asked), self._url + path
        method, data, params = ("POST", given, None) if post else ("GET", None, given)
        try:
            with self._http.stream(method, url, headers=self._headers, data=data, params=params) as response:
                body = self._body(response, until)
        except (httpx2.TimeoutException, TimeoutError) as error:
            if isinstance(error, httpx2.ConnectTimeout):
                raise connection_error(error, self._shown) from error
            sentence = f"{self._shown} did not answer {path} within {self.deadline_seconds:.0f} s"
            raise TooMuchError("timeout", f"{sentence}; raise --timeout, or narrow --selector or --since") from error
        except _USED as error:
            raise connection_error(error, self._shown) from error
        if response.status_code == 405 and post:
            return self._once(path, asked, post=False)
        if response.status_code != 200:
            refused = refusal_of(response.status_code, body, self._shown, path, sent=bool(self._headers))
            if isinstance(refused, BusyError) and (told := response.headers.get("Retry-After", "")).isdecimal():
                refused.wait_seconds = float(told[:9])
            raise refused
        return self._data(body, path)

    def _body(self, response: httpx2.Response, until: float) -> bytes:
        """At most LARGEST_ANSWER_BYTES of it, unpacked. TimeoutError where it drips in for too long."""
        body = bytearray()
        for chunk in response.iter_bytes():  # as they come: pieces of a size would be waited for
            body += chunk
            if time.monotonic() > until:
                raise TimeoutError
            if len(body) > LARGEST_ANSWER_BYTES:
                sentence = f"one answer of {self._shown} is larger than {LARGEST_ANSWER_BYTES >> 20} MiB"
                raise TooMuchError("too_large", f"{sentence}; narrow --selector")
        self.asked.received_bytes += len(body)
        return bytes(body)

    def _data(self, body: bytes, path: str) -> Any:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            sentence = f"{self._shown}{path} answered something that is no JSON"
            raise PrometheusError("garbage", f"{sentence}; is it a Prometheus, and is its path complete?") from error
        if not isinstance(found, dict) or found.get("status") != "success":
            raise PrometheusError("garbage", f"{self._shown}{path} answered JSON that is no answer of a Prometheus")
        warnings = found.get("warnings")
        for warning in warnings if isinstance(warnings, list) else ():
            if len(self.asked.warnings) < MOST_WARNINGS:
                self.asked.warnings[brief(warning, 300)] = None
        return found.get("data")

    @property
    def _shown(self) -> str:
        return brief(self._url, 200)


def _series(one: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A series with numbers for its times and values. Raises what a thing that is none raises."""
    metric = _labels(one.get("metric") or {})
    if kind == "vector":
        t, value = one["value"]
        return {"metric": metric, "value": (float(t), float(value))}
    return {"metric": metric, "values": [(float(t), float(value)) for t, value in one.get("values") or ()]}


def _labels(metric: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in metric.items()}


def _base(url: str) -> str:
    """The URL without what the API adds. Raises PrometheusError for one that cannot be asked; credentials stay out."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise PrometheusError("config", f"--prometheus is no URL: {brief(error)}") from error
    if parts.username is not None or parts.password is not None:
        sentence = "--prometheus must not hold credentials, which would be shown"
        raise PrometheusError("config", f"{sentence}: use --username with --password-file, or --bearer-token-file")
    if parts.scheme not in ("http", "https") or not host:
        raise PrometheusError("config", f"--prometheus must be http://HOST:PORT or https://..., got {brief(url)}")
    if reason := refusal(host, link_local=True):
        raise PrometheusError("refused", f"{brief(host)} is {reason}, which is never asked")
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/").removesuffix("/api/v1")
