"""Blocks of a page and how to recognise them again when only their values have changed.

A block knows which of its lines are wanted series, and what proves that other text is the same block with other
values: that no line of it became a wanted one, and that no wanted one became another. The proofs differ in cost; a
block is made with the cheapest that fits it. `update` may refuse a block that is the same, never take one that is not.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import Final

from kvpressure.promtext.lines import STEP_LINES, Line, Series, Steps, parse_line

_COMMENT: Final = b"#"
_REST: Final = Line(b"")


class Block:
    """A stretch of a page that is never recognised: it is parsed anew whenever its bytes change.

    `series` are its wanted series in order; their values are at `start` and after in the values of the page.
    """

    def __init__(self, series: tuple[Series, ...] = ()) -> None:
        self.series = series
        self.start = 0

    def update(self, text: bytes, values: list[float]) -> bool:  # noqa: ARG002 - this is the block that never can
        """Put the values of `text` into their place; False if `text` may not be this block with other values."""
        return False

    def _put(self, tails: list[bytes], joined: bytes, values: list[float]) -> bool:
        if b"_" in joined:  # Python reads 1_0 as 10, Prometheus does not
            return False
        try:
            values[self.start : self.start + len(tails)] = map(float, tails)
        except ValueError:
            return False
        return True


class _Unwanted(Block):
    """Comments, then samples that share the beginning of a name which no wanted name has."""

    def __init__(self, comments: list[bytes], stem: bytes) -> None:
        super().__init__()
        self._preamble = b"\n".join(comments)
        self._comments = len(comments)
        self._stem = b"\n" + stem

    def update(self, text: bytes, values: list[float]) -> bool:  # noqa: ARG002 - nothing here is wanted
        """Every line after the comments starts with the stem."""
        return text.startswith(self._preamble) and text.count(self._stem) == text.count(b"\n") - self._comments + 1


class _One(Block):
    """Comments, then one sample, wanted or beginning like no wanted one: what most blocks are."""

    def __init__(self, comments: list[bytes], head: bytes, series: tuple[Series, ...] = ()) -> None:
        super().__init__(series)
        self._before = b"\n".join([*comments, head])

    def update(self, text: bytes, values: list[float]) -> bool:
        """All up to the value is as it was, and what follows is one line, which is one number if it is wanted."""
        if not text.startswith(self._before):
            return False
        tail = text[len(self._before) :]
        return b"\n" not in tail and (not self.series or self._put([tail], tail, values))


class _Wanted(Block):
    """Comments, then wanted series only."""

    def __init__(self, comments: list[bytes], heads: list[bytes], series: tuple[Series, ...]) -> None:
        super().__init__(series)
        self._comments = len(comments)
        self._heads = comments + heads
        self._end = self._comments + len(heads)
        self._fixed = sum(map(len, self._heads)) + self._end - 1

    def update(self, text: bytes, values: list[float]) -> bool:
        """Every head was taken off its line, for together they leave as little as the values of this block would."""
        lines = text.split(b"\n")
        if len(lines) != self._end:
            return False
        tails = list(map(bytes.removeprefix, lines, self._heads))
        joined = b"".join(tails)
        return len(joined) + self._fixed == len(text) and self._put(tails[self._comments :], joined, values)


class _Mixed(Block):
    """Any lines at all, each with a head."""

    def __init__(self, heads: list[bytes], picks: list[int], series: tuple[Series, ...]) -> None:
        super().__init__(series)
        self._heads = heads
        self._picks = picks

    def update(self, text: bytes, values: list[float]) -> bool:
        """Every line starts with its head."""
        lines = text.split(b"\n")
        if len(lines) != len(self._heads) or not all(map(bytes.startswith, lines, self._heads)):
            return False
        tails = [lines[i].removeprefix(self._heads[i]) for i in self._picks]
        return self._put(tails, b"".join(tails), values)


def block_steps(text: bytes, *, opens: bool, wanted: frozenset[bytes]) -> Steps[tuple[Block, list[float]]]:
    """Parse a block from nothing; unless it `opens` the page its first line is the rest of a `# HELP` line.

    Gives the block and its values. Raises PageError("malformed").
    """
    lines = text.split(b"\n")
    rest = 0 if opens else 1
    parsed = [_REST] * rest
    line = _REST
    for number, one in enumerate(lines[rest:], 1):
        if number % STEP_LINES == 0:
            yield
        if not line.head or line.series is not None or not one.startswith(line.head):
            line = parse_line(one, wanted)
        parsed.append(line)
    return _block(lines, parsed, rest, wanted), [line.value for line in parsed if line.series is not None]


def _block(lines: list[bytes], parsed: list[Line], rest: int, wanted: frozenset[bytes]) -> Block:
    series = tuple(line.series for line in parsed if line.series is not None)
    heads = [line.head for line in parsed if line.head is not None]
    if len(heads) < len(parsed):
        return Block(series)
    comments = next((i for i in range(rest, len(heads)) if heads[i] != _COMMENT), len(heads))
    samples = heads[comments:]
    if series and len(series) == len(samples):
        one = len(series) == 1
        return _One(lines[:comments], samples[0], series) if one else _Wanted(lines[:comments], samples, series)
    stem = _common(samples)
    if not series and comments and stem.strip() == stem != b"" and not _begins_wanted(stem, wanted):
        return _One(lines[:comments], stem) if len(samples) == 1 else _Unwanted(lines[:comments], stem)
    return _Mixed(heads, [i for i, line in enumerate(parsed) if line.series is not None], series)


def _begins_wanted(stem: bytes, wanted: frozenset[bytes]) -> bool:
    names = _sorted(wanted)
    at = bisect_left(names, stem)
    return at < len(names) and names[at].startswith(stem)


@lru_cache(maxsize=8)
def _sorted(wanted: frozenset[bytes]) -> tuple[bytes, ...]:
    return tuple(sorted(wanted))


def _common(heads: list[bytes]) -> bytes:
    """Return the longest beginning that all of `heads` share."""
    if not heads:
        return b""
    low, high = min(heads), max(heads)
    return low[: next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))]
