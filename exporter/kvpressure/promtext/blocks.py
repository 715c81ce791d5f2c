"""Blocks of a page, which are recognised again when only their values have changed.

A block knows which of its lines are requested series, and proves that another text is the same block with other
values: no line became a requested series, and none became another. The proofs differ in cost; a block is made with the
cheapest that fits it. `update` may reject a text that is the same block, but never accepts one that is not.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import Any, Final
from weakref import WeakValueDictionary

from kvpressure.promtext.lines import STEP_LINES, Line, Series, Steps, parse_line

_COMMENT: Final = b"#"
_REST: Final = Line(b"")
_SHARED_BYTES: Final = 4096
"""The longest text of a block that is kept to be shared."""


class Block:
    """A part of a page that is parsed again whenever its bytes change.

    `series` are its requested series in order. It never changes: replicas of a deployment share theirs. `text` is the
    one that it was first made of, if that is short.
    """

    text = b""

    def __init__(self, series: tuple[Series, ...] = ()) -> None:
        self.series = series

    def update(self, text: bytes, start: int, values: list[float]) -> bool:  # noqa: ARG002 - other blocks use them
        """Write the values of `text` to `values` from `start`; False if it may not be this block with other values."""
        return False

    def _put(self, tails: list[bytes], joined: bytes, start: int, values: list[float]) -> bool:
        if b"_" in joined:  # Python reads 1_0 as 10, Prometheus does not
            return False
        try:
            parsed = list(map(float, tails))
        except ValueError:
            return False
        # Samples of two minutes share the numbers that did not change: 40 KiB less for an engine.
        for place, new in enumerate(parsed, start):
            if values[place] != new:
                values[place] = new
        return True


class _Skipped(Block):
    """Comments, then samples that share a prefix of their names which no requested name has."""

    def __init__(self, comments: tuple[bytes, ...], stem: bytes) -> None:
        super().__init__()
        self._preamble = b"\n".join(comments)
        self._comments = len(comments)
        self._stem = b"\n" + stem

    def update(self, text: bytes, start: int, values: list[float]) -> bool:  # noqa: ARG002 - it has no values
        """Return whether every line after the comments starts with the prefix."""
        return text.startswith(self._preamble) and text.count(self._stem) == text.count(b"\n") - self._comments + 1


class _SingleSample(Block):
    """Comments, then one sample, requested or with a prefix of no requested name: most blocks."""

    def __init__(self, comments: tuple[bytes, ...], head: bytes, series: tuple[Series, ...] = ()) -> None:
        super().__init__(series)
        self._before = b"\n".join([*comments, head])

    def update(self, text: bytes, start: int, values: list[float]) -> bool:
        """Return whether only the value differs: the text is unchanged before it, and the rest is one line."""
        if not text.startswith(self._before):
            return False
        tail = text[len(self._before) :]
        return b"\n" not in tail and (not self.series or self._put([tail], tail, start, values))


class _Requested(Block):
    """Comments, then requested series only."""

    def __init__(self, comments: tuple[bytes, ...], heads: tuple[bytes, ...], series: tuple[Series, ...]) -> None:
        super().__init__(series)
        self._comments = len(comments)
        self._heads = comments + heads
        self._end = self._comments + len(heads)
        self._fixed = sum(map(len, self._heads)) + self._end - 1

    def update(self, text: bytes, start: int, values: list[float]) -> bool:
        """Return whether every line starts with its head: then the rests are as short as this block's values."""
        lines = text.split(b"\n")
        if len(lines) != self._end:
            return False
        tails = list(map(bytes.removeprefix, lines, self._heads))
        joined = b"".join(tails)
        return len(joined) + self._fixed == len(text) and self._put(tails[self._comments :], joined, start, values)


class _Mixed(Block):
    """Any lines, each with a head; `picks` are the positions of requested series."""

    def __init__(self, heads: tuple[bytes, ...], picks: tuple[int, ...], series: tuple[Series, ...]) -> None:
        super().__init__(series)
        self._heads = heads
        self._picks = picks

    def update(self, text: bytes, start: int, values: list[float]) -> bool:
        """Return whether every line starts with its head."""
        lines = text.split(b"\n")
        if len(lines) != len(self._heads) or not all(map(bytes.startswith, lines, self._heads)):
            return False
        tails = [lines[i].removeprefix(self._heads[i]) for i in self._picks]
        return self._put(tails, b"".join(tails), start, values)


def block_steps(text: bytes, *, opens: bool, names: frozenset[bytes]) -> Steps[tuple[Block, list[float]]]:
    """Parse a block and return it with its values. Raises MalformedError.

    Unless it `opens` the page, its first line is the rest of a `# HELP` line.
    """
    lines = text.split(b"\n")
    rest = 0 if opens else 1
    parsed = [_REST] * rest
    line = _REST
    for number, raw in enumerate(lines[rest:], 1):
        if number % STEP_LINES == 0:
            yield
        if not line.head or line.series is not None or not raw.startswith(line.head):
            line = parse_line(raw, names)
        parsed.append(line)
    kind, parts = _kind(lines, parsed, rest, names)
    block = _BLOCKS.get((kind, parts))
    if block is None:
        block = _BLOCKS[kind, parts] = kind(*parts)
        block.text = text if len(text) <= _SHARED_BYTES else b""
    return block, [line.value for line in parsed if line.series is not None]


_BLOCKS: Final[WeakValueDictionary[tuple[type[Block], tuple[Any, ...]], Block]] = WeakValueDictionary()
"""Blocks in use, by what they are made of. With their texts that is 4 MiB less of 108 with 64 replicas."""


def _kind(
    lines: list[bytes], parsed: list[Line], rest: int, names: frozenset[bytes]
) -> tuple[type[Block], tuple[Any, ...]]:
    """Return the cheapest kind of block that fits, and what one is made of."""
    series = tuple(line.series for line in parsed if line.series is not None)
    heads = tuple(line.head for line in parsed if line.head is not None)
    if len(heads) < len(parsed):
        return Block, (series,)
    count = next((i for i in range(rest, len(heads)) if heads[i] != _COMMENT), len(heads))
    comments, samples = tuple(lines[:count]), heads[count:]
    if series and len(series) == len(samples):
        if len(series) == 1:
            return _SingleSample, (comments, samples[0], series)
        return _Requested, (comments, samples, series)
    stem = _common_prefix(samples)
    if not series and comments and stem.strip() == stem != b"" and not _is_prefix(stem, names):
        return _SingleSample if len(samples) == 1 else _Skipped, (comments, stem)
    return _Mixed, (heads, tuple(i for i, line in enumerate(parsed) if line.series is not None), series)


def _is_prefix(stem: bytes, names: frozenset[bytes]) -> bool:
    ordered = _sorted(names)
    at = bisect_left(ordered, stem)
    return at < len(ordered) and ordered[at].startswith(stem)


@lru_cache(maxsize=8)
def _sorted(names: frozenset[bytes]) -> tuple[bytes, ...]:
    return tuple(sorted(names))


def _common_prefix(heads: tuple[bytes, ...]) -> bytes:
    """Return the longest common prefix of `heads`."""
    low, high = min(heads, default=b""), max(heads, default=b"")
    return low[: next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))]
