"""What can go wrong between us and a Prometheus: one sentence each, saying what happened, where, and what to do."""

from __future__ import annotations

import json
import re
import ssl
from typing import Final

import httpx2

from kvpressure.model.record import SourceError
from kvpressure.printable import brief


class PrometheusError(SourceError):
    """The server cannot be queried, or does not answer; the same query again does not help."""

    def __reduce__(self) -> tuple[type[PrometheusError], tuple[str, str]]:
        """How it comes from a process that reads to the one that prints it."""
        return type(self), (self.reason, self.sentence)


class TooMuchError(PrometheusError):
    """One answer would be larger, or take longer, than the server or this program allows: query a shorter time."""


class BusyError(PrometheusError):
    """The server could not answer just now; the same question may be answered after `wait_seconds`, where it said."""

    wait_seconds: float = 0.0


_TOO_MUCH: Final = re.compile(
    r"exceeded maximum resolution|too many samples|too many (data)?points|query timed out|context deadline exceeded"
    r"|query time range exceeds|maxSamplesPerQuery|max-samples-per-query|the query hit the max|maxPointsPerTimeseries"
    r"|limit of .* (bytes|chunks|series)|maxQueryDuration|timeout exceeded|(chunks|samples|bytes|series) limit",
    re.IGNORECASE,
)
"""How the four servers say that a query has to be shorter."""


def refusal_of(status: int, body: bytes, where: str, path: str, *, sent: bool) -> PrometheusError:
    """Return what an answer other than 200 means; `sent` says whether any header of the user's went along."""
    said = _message(body)
    quoted = f" (it says: {brief(said, 300)})" if said else ""
    if _TOO_MUCH.search(said) and status in (400, 413, 422, 500, 503, 504):
        return TooMuchError("too_much", f"{where} refuses to answer so much at once{quoted}; narrow --selector")
    if status == 429 or status >= 500:
        return BusyError("busy", f"{where} answered {status} to {path}{quoted}; is it overloaded?")
    reason, sentence, todo = _told(status, said, path, sent=sent)
    return PrometheusError(reason, f"{where} {sentence}{quoted}; {todo}")


def _told(status: int, said: str, path: str, *, sent: bool) -> tuple[str, str, str]:
    """Return the word, what happened, and what to do."""
    if "no org id" in said.lower():
        return "org_id", "wants to know the tenant", "give --org-id"
    if 300 <= status < 400:
        todo = "give the address that it redirects to; a page to log in means that credentials are missing"
        return "redirect", "answered with a redirect, which is not followed", todo
    words = {
        401: (
            "unauthorized",
            "does not accept the credentials that were sent" if sent else "requires credentials",
            "give --bearer-token-file, or --username with --password-file",
        ),
        403: ("forbidden", f"forbids {path} to these credentials", "ask its operator"),
        404: (
            "not_found",
            f"has no {path}",
            "the URL may lack a path such as Mimir's /prometheus or VictoriaMetrics' /select/0/prometheus",
        ),
    }
    return words.get(status, ("http_status", f"answered {status} to {path}", "check --selector"))


def connection_error(error: BaseException, where: str) -> PrometheusError:
    """Return what httpx2, ssl or the system raised on the way there."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 8:
        causes.append(cause)
    if found := next((one for one in causes if isinstance(one, ssl.SSLError)), None):
        text = f"TLS with {where} failed: {brief(found, 120)}; check --ca-file, --cert-file and the server's name"
        return PrometheusError("tls", text)
    if any(isinstance(one, ConnectionRefusedError) for one in causes):
        text = f"connection refused by {where}; is it up and the port right? Is a port-forward running?"
        return PrometheusError("unreachable", text)
    text = next((str(one) for one in reversed(causes) if isinstance(one, OSError) and str(one)), str(error))
    plain = brief(re.sub(r"^\[Errno -?\d+\] ", "", text) or type(error).__name__)
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
        return PrometheusError("unreachable", f"no connection to {where}: {plain}")
    if isinstance(error, httpx2.InvalidURL | ValueError):
        return PrometheusError("config", f"{where} cannot be queried: {plain}")
    return BusyError("connection", f"the connection to {where} broke: {plain}")


def _message(body: bytes) -> str:
    """Return the error of the API's JSON, else the start of whatever came."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return body[:300].decode(errors="replace").strip()
    return str(found.get("error", "")) if isinstance(found, dict) else ""
