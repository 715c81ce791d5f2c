"""Successive pages of one target: read alike with or without a memory, in steps or at once, and as the oracle reads.

An input is pages with `_BETWEEN` between them.
"""

import re
from random import Random

from kvpressure.promtext.lines import PageError, Series
from kvpressure.promtext.scanner import PageScanner
from tests.fuzz.pages import NUMBERS, WANTED, page, same_value
from tests.fuzz.target import Target, expect
from tests.support.pages import oracle

_BETWEEN = b"\x1e\x1e"
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
# The oracle takes these for blanks, for str.strip() does; Prometheus does not.
_PYTHONS_BLANKS = re.compile(r"[^\S \t\r\n\f\v]")
_Read = tuple[tuple[Series, ...], list[float]]


def check(data: bytes) -> tuple[object, ...]:
    """Every page is read alike whatever was read before it."""
    remembering = PageScanner(WANTED, lambda found: found)
    stepping = PageScanner(WANTED, lambda found: found)
    kinds = []
    for text in data.split(_BETWEEN):
        fresh = _scan(PageScanner(WANTED, lambda found: found), text)
        expect(_same(_scan(remembering, text), fresh), "a scanner that remembers reads otherwise", text)
        expect(_same(_step(stepping, text), fresh), "a page read in steps is another", text)
        if not isinstance(fresh, str):
            _against_oracle(text, fresh)
        kinds.append(fresh if isinstance(fresh, str) else len(fresh[0]).bit_length())
    return tuple(kinds[:3])


def _scan(scanner: PageScanner[tuple[Series, ...]], text: bytes) -> _Read | str:
    try:
        series, values = scanner.scan(text)
    except PageError as error:
        expect(error.reason in {"malformed", "too_large"} and len(str(error)) < 1000, "an unknown refusal", str(error))
        return error.reason
    return series, list(values)


def _step(scanner: PageScanner[tuple[Series, ...]], text: bytes) -> _Read | str:
    steps = scanner.steps(text)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value[0], list(done.value[1])
        except PageError as error:
            return error.reason


def _same(left: _Read | str, right: _Read | str) -> bool:
    if isinstance(left, str) or isinstance(right, str):
        return left == right
    return left[0] == right[0] and len(left[1]) == len(right[1]) and all(map(same_value, left[1], right[1]))


def _against_oracle(text: bytes, read: _Read) -> None:
    if _PYTHONS_BLANKS.search(_QUOTED.sub("", text.decode("utf-8", "replace"))):
        return
    try:
        expected = oracle(text, WANTED)
    except Exception:  # noqa: BLE001 - the oracle's own faults are not ours
        return
    found = dict(zip(*read, strict=True))
    expect(found.keys() == expected.keys(), "other series than the oracle's", (text, found.keys() ^ expected.keys()))
    expect(all(same_value(found[one], expected[one]) for one in found), "other values than the oracle's", text)


def make(random: Random) -> bytes:
    """One page, or a page that changes a little from poll to poll."""
    pages = [page(random)]
    for _ in range(random.getrandbits(2)):
        changed = b"\n".join(
            one if random.getrandbits(2) or b" " not in one else one.rpartition(b" ")[0] + b" " + random.choice(NUMBERS)
            for one in pages[-1].split(b"\n")
        )
        pages.append(changed if random.getrandbits(2) else page(random))
    return _BETWEEN.join(pages)


TARGET = Target(
    about="successive /metrics pages, remembered or not, in steps or at once, with prometheus_client as the oracle",
    make=make,
    check=check,
    words=(
        *NUMBERS,
        *sorted(WANTED),
        _BETWEEN,
        b'{le="0.5"}',
        b"\n# HELP ",
        b"\n# TYPE ",
        b"\n# HELP a x\na 1",
        b" # {",
    ),
    longest_bytes=1200,
)
