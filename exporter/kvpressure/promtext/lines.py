"""One line of a Prometheus text page: which series it is, where its value starts, and what the value is.

The syntax is that of the text format 0.0.4; an OpenMetrics exemplar after a value is skipped. Lines whose name is not
requested are only classified, never parsed.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias, TypeVar

from kvpressure.model.errors import NotMetricsError, SourceError, TooLargeError, TruncatedError

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""Work on a page that yields between steps and returns its result."""

STEP_LINES: Final = 256
"""Lines of a page read in one step: a few milliseconds at worst."""

MAX_LINE_BYTES: Final = 65_536
_NAME = re.compile(rb"[ \t\r\f\v]*+([a-zA-Z_:][a-zA-Z0-9_:]*+)([ \t]*+)")
_LABEL = re.compile(
    rb'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"[ \t]*+(?:,[ \t]*+|(?=\}))', re.DOTALL
)
_SHARED_BYTES: Final = 64
_SHARED_HEAD_BYTES: Final = 256
_SPACES = re.compile(rb"[ \t]*+")
_ESCAPE = re.compile(rb'\\([\\n"])')
_UNESCAPED: Final = {b"\\": b"\\", b"n": b"\n", b'"': b'"'}


def in_one_go(steps: Steps[T]) -> T:
    """Return the result of all steps."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


class PageError(SourceError):
    """A page that must not be read."""


class WithoutMetricsError(PageError, NotMetricsError):
    """It has none of the requested names."""


class CutPageError(PageError, TruncatedError):
    """Its last line has no end."""


class MalformedError(PageError, reason="malformed"):
    """A line with a requested name cannot be parsed."""


class LargePageError(PageError, TooLargeError):
    """It has more lines, or engines, than are read."""


def require_end(page: bytes) -> None:
    """Raise PageError where the last line has no end: a cut number is a smaller number."""
    if not page.endswith(b"\n"):
        raise CutPageError(f"the page breaks off in its last line, after {len(page)} bytes")


class Series(NamedTuple):
    """A sample name and its labels, sorted by label name."""

    name: str
    labels: tuple[tuple[str, str], ...]


class Line(NamedTuple):
    """A classified line.

    Any line that starts with `head` is of the same kind: a comment, a sample of the same name, or, where `series` is
    set, a sample of the same series, whose value starts right after `head`. A line without such a prefix (blank,
    garbage) has `head` None.
    """

    head: bytes | None
    series: Series | None = None
    value: float = 0.0


_UNKNOWN: Final = Line(None)


def parse_line(line: bytes, names: frozenset[bytes]) -> Line:
    """Classify `line`, and parse it where its sample name is in `names`.

    Raises MalformedError for a line to parse that is not a valid sample.
    """
    match = _NAME.match(line)
    if match is None:
        return _no_sample(line)
    end = match.end()
    braced = line[end : end + 1] == b"{"
    if match[1] not in names:
        return Line(line[: end + braced]) if braced or match[2] else _UNKNOWN
    if len(line) > MAX_LINE_BYTES:
        raise _malformed(line)
    labels, start = _labels(line, end + 1) if braced else ((), end)
    if not braced and not match[2]:
        raise _malformed(line)
    head, series = line[:start], Series(match[1].decode(), labels)
    return Line(*(_shared(head, series) if start <= _SHARED_HEAD_BYTES else (head, series)), _value(line, start))


@lru_cache(maxsize=8192)
def _shared(head: bytes, series: Series) -> tuple[bytes, Series]:
    """Return the same objects for equal arguments: replicas of a deployment have the same series."""
    return head, series


def _no_sample(line: bytes) -> Line:
    stripped = line.lstrip()
    if stripped[:1] in {b"#", b"{"}:
        return Line(line[: len(line) - len(stripped) + 1])
    return _UNKNOWN


def _labels(line: bytes, start: int) -> tuple[tuple[tuple[str, str], ...], int]:
    """Return the labels of `line` from the byte after its brace, and where its value part starts."""
    labels: list[tuple[str, str]] = []
    matched = _SPACES.match(line, start)
    position = matched.end() if matched else start
    while line[position : position + 1] != b"}":
        label = _LABEL.match(line, position)
        if label is None:
            raise _malformed(line)
        name, value = label.groups()
        labels.append(_pair(name, value) if len(value) <= _SHARED_BYTES else (name.decode(), _unescape(value)))
        position = label.end()
    if len(dict(labels)) < len(labels):
        raise _malformed(line)
    labels.sort()
    return tuple(labels), position + 1


@lru_cache(maxsize=4096)
def _pair(name: bytes, value: bytes) -> tuple[str, str]:
    """Return a label, the same object for equal arguments: with many engines each occurs hundreds of times."""
    return name.decode(), _unescape(value)


def _unescape(value: bytes) -> str:
    if b"\\" in value:
        value = _ESCAPE.sub(lambda match: _UNESCAPED[match[1]], value)
    return value.decode("utf-8", "replace")


def _value(line: bytes, start: int) -> float:
    """Return the value in `line[start:]`, which may be followed by a timestamp and by an exemplar."""
    tokens = line[start:].partition(b" # ")[0].split()
    if not 1 <= len(tokens) <= 2:
        raise _malformed(line)
    try:
        value, *_ = map(_number, tokens)
    except ValueError:
        raise _malformed(line) from None
    return value


def _number(token: bytes) -> float:
    if b"_" in token:  # Python reads 1_0 as 10, Prometheus does not
        raise ValueError(token)
    return float(token)


def _malformed(line: bytes) -> MalformedError:
    shown = line[:120].decode("utf-8", "replace")
    return MalformedError(f"a line that should be a sample is not one: {shown!r}")
