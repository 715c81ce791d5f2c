"""A Prometheus' responses: JSON to values in bounded memory, and a sentence for everything that can go wrong.

A value takes up to a hundred times the memory of its text (`[],` is three bytes), so values are counted before they are
parsed. Samples, most of an honest response, are put into arrays a few at a time: sixteen bytes each. An error says what
happened, where, and what to do.
"""

from __future__ import annotations

import json
import re
import socket
from array import array
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, Final, NoReturn

from kvpressure.model.errors import BrokenConnectionError, SourceError, UnreachableError
from kvpressure.net.outgoing import request_failure
from kvpressure.printable import brief

MAX_VALUES: Final = 1_000_000
"""Of one text, samples apart: strings, numbers, lists and objects."""
LONGEST_TEXT_BYTES: Final = 12 << 20
"""Samples apart; with characters of four bytes it is four times as much while it is read."""
MAX_SERIES: Final = 40_000
"""Of one answer: engines of a large fleet, or all series of a hundred engines."""
MAX_SAMPLES: Final = 1_200_000
"""Of one answer; put together to pages they take a hundred bytes each."""

_LONGEST_INTEGER_DIGITS: Final = 18
_WINDOW_BYTES: Final = 1 << 16
_VALUES: Final = re.compile(rb'"values"\s*:\s*(?=\[\s*\[)')


class TooManyError(ValueError):
    """The response has more values than are read."""


class NoSamplesError(ValueError):
    """The response has something else in place of samples."""


class Samples:
    """Times and values of one series; iteration gives pairs."""

    __slots__ = ("times", "values")

    def __init__(self) -> None:
        self.times, self.values = array("d"), array("d")

    @classmethod
    def of(cls, pairs: Iterable[Any]) -> Samples:
        """Return samples of pairs, as numbers or their texts. Raises NoSamplesError."""
        samples = cls()
        samples.extend(pairs)
        return samples

    def extend(self, pairs: Iterable[Any]) -> None:
        """Append more pairs. Raises NoSamplesError."""
        try:
            for t, value in pairs:
                moment = float(t)
                if not isfinite(moment):
                    raise NoSamplesError("a time is invalid")
                self.times.append(moment)
                self.values.append(float(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise NoSamplesError(brief(error)) from error

    def __len__(self) -> int:
        return len(self.times)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return zip(self.times, self.values, strict=True)


def read_json(text: bytes, *, exact: bool = True) -> Any:
    """Return the values of a JSON text; with `exact` whole numbers stay whole.

    Raises ValueError, and TooManyError for too much.

    >>> read_json(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    if not is_bounded(text):
        raise TooManyError("it holds more values than are read")
    try:
        return json.loads(
            text.decode(), parse_int=_integer if exact else float, parse_float=_finite, parse_constant=_refuse
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_bounded(text: bytes) -> bool:
    """Whether a JSON text is short enough to be read, and holds few enough values."""
    return len(text) <= LONGEST_TEXT_BYTES and sum(map(text.count, (b",", b"[", b"{"))) <= MAX_VALUES


def read_answer(body: bytes) -> tuple[Any, list[Samples]]:
    """Return an answer's values, in which every list of samples is its place in the second. Raises ValueError."""
    rest = bytearray()
    samples = list[Samples]()
    at = 0
    left = MAX_SAMPLES
    while match := _VALUES.search(body, at):
        end = body.find(b"]]", match.end())
        if len(samples) == MAX_SERIES:
            raise TooManyError(f"it holds more than {MAX_SERIES:,} series")
        rest += body[at : match.end()] + b"%d" % len(samples)
        samples.append(_samples(body, match.end() + 1, end + 1, left))
        left -= len(samples[-1])
        at = end + 2
    return read_json(bytes(rest) + body[at:] if at else body, exact=False), samples


def labels_of(metric: Mapping[str, Any]) -> dict[str, str]:
    """Return labels as text that can be sent back: JSON may have halves of characters, which no encoding has."""
    return {_whole(str(name)): _whole(str(value)) for name, value in metric.items()}


def _samples(body: bytes, start: int, end: int, most: int) -> Samples:
    """Return the pairs of a list without its brackets. Raises ValueError."""
    samples = Samples()
    if end < start:
        raise ValueError("it is cut")
    while start < end:
        stop = body.find(b"],", min(start + _WINDOW_BYTES, end), end)
        stop = end if stop < 0 else stop + 1
        if stop - start > 2 * _WINDOW_BYTES:
            raise ValueError("one of its samples is too long")
        samples.extend(json.loads(f"[{body[start:stop].decode()}]", parse_int=float, parse_constant=_refuse))
        if len(samples) > most:
            raise TooManyError(f"it holds more than {MAX_SAMPLES:,} samples")
        start = stop + 1
    return samples


def _whole(text: str) -> str:
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER_DIGITS:
        raise ValueError(f"it holds a number of {len(text):,} digits")
    return int(text)


def _finite(text: str) -> float:
    if not isfinite(value := float(text)):
        raise ValueError("it holds a number that is too large")
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"it holds {text}, which JSON does not know")


class PrometheusError(SourceError, reason="prometheus"):
    """The server cannot be queried, or does not answer; repeating the query does not help."""


class TooMuchError(PrometheusError):
    """One answer would be larger, or take longer, than the server or this program allows: query a shorter time."""


class BusyError(PrometheusError):
    """The server could not answer just now; repeating the query after `wait_seconds`, if it said so, may help."""

    wait_seconds: float = 0.0


_TOO_MUCH: Final = re.compile(
    r"exceeded maximum resolution|too many samples|too many (data)?points|query timed out|context deadline exceeded"
    r"|query time range exceeds|maxSamplesPerQuery|max-samples-per-query|the query hit the max|maxPointsPerTimeseries"
    r"|limit of .* (bytes|chunks|series)|maxQueryDuration|timeout exceeded|(chunks|samples|bytes|series) limit",
    re.IGNORECASE,
)
"""How Prometheus, Thanos, Mimir and VictoriaMetrics say that a query has to be shorter."""


def refusal_of(status: int, body: bytes, where: str, path: str, *, sent: bool) -> PrometheusError:
    """Return the error for a response other than 200; `sent` says whether credentials or headers were sent."""
    message = _message(body)
    quoted = f" (it says: {brief(message, 300)})" if message else ""
    if _TOO_MUCH.search(message) and status in (400, 413, 422, 500, 503, 504):
        return TooMuchError(f"{where} refuses to answer so much at once{quoted}; narrow --selector")
    if status == 429 or status >= 500:
        return BusyError(f"{where} answered {status} to {path}{quoted}; is it overloaded?")
    sentence, todo = _explained(status, message, path, sent=sent)
    return PrometheusError(f"{where} {sentence}{quoted}; {todo}")


def _explained(status: int, message: str, path: str, *, sent: bool) -> tuple[str, str]:
    """Return what happened, and what to do."""
    if "no org id" in message.lower():
        return "requires a tenant", "give --http.config.file with http_headers: {X-Scope-OrgID: {values: [TENANT]}}"
    if 300 <= status < 400:
        todo = "give the address that it redirects to; a page to log in means that credentials are missing"
        return "answered with a redirect, which is not followed", todo
    words = {
        401: (
            "does not accept the credentials that were sent" if sent else "requires credentials",
            "give --http.config.file with authorization or basic_auth",
        ),
        403: (f"forbids {path} to these credentials", "ask its operator"),
        404: (
            f"has no {path}",
            "is it a Prometheus? Mimir's URL ends in /prometheus, VictoriaMetrics' in /select/0/prometheus",
        ),
    }
    return words.get(status, (f"answered {status} to {path}", "check --selector"))


def connection_error(error: BaseException, where: str) -> PrometheusError:
    """Return the error for what aiohttp, ssl or the system raised; BusyError where another request may succeed."""
    hints = "tls_config of --http.config.file", " Is a port-forward running?"
    failure, cause = request_failure(error, where, *hints), error.__cause__ or error
    unknown_name = isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN
    unreachable = isinstance(failure, UnreachableError) and isinstance(error, OSError) and not unknown_name
    broke = unreachable or isinstance(failure, BrokenConnectionError)
    return (BusyError if broke else PrometheusError)(failure.sentence)


def _message(body: bytes) -> str:
    """Return the error in the API's JSON, else the start of the body; "" for HTML."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        text = body[:300].decode(errors="replace").strip()
        return "" if text.startswith("<") else text
    return str(answer.get("error", "")) if isinstance(answer, dict) else ""
