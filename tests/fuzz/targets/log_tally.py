"""Counting and learning from a log's lines: counts never fall, excerpts are short, and what is learned is a number."""

import math
from random import Random

from kvpressure.model.environment import ContainerId
from kvpressure.sources.logs.lines import Line
from kvpressure.sources.logs.tally import Tally
from tests.fuzz import logs
from tests.fuzz.target import Target, expect

_STAMPS = (
    "",
    "2024-01-01T00:00:00Z",
    "2024-01-01T00:00:09.123456789Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59-23:59",
)


def check(data: bytes) -> tuple[object, ...]:
    """Each line of the input is one line of the log; its first byte says when it came."""
    tally = Tally(ContainerId("n", "p", "c"), since=1.7e9)
    before: dict[str, int] = {}
    for number, raw in enumerate(data.split(b"\n")):
        first = raw[0] if raw else 0
        line = Line(raw[1:].decode("utf-8", "replace"), _STAMPS[first % len(_STAMPS)])
        if first == 255:
            tally.begin()
        tally.take(line, 1.8e9 + number * (first % 100), old=first % 7 == 0)
        counts = dict(tally.report(1.8e9).counts)
        expect(all(counts[kind] >= n for kind, n in before.items()), "a count fell", (before, counts))
        expect(sum(counts.values()) <= sum(before.values()) + 1, "one line counts twice", (before, counts))
        before = counts
    report = tally.report(1.8e9)
    expect(
        all(len(text) <= 200 and text for text in report.lines.values()),
        "an excerpt without an end, or empty",
        report.lines,
    )
    for learned in (report.kv_capacity_tokens, report.kv_bytes_per_token):
        expect(learned is None or (math.isfinite(learned) and learned > 0), "what is learned is no number", learned)
    return (
        tuple(kind for kind, n in before.items() if n),
        report.kv_capacity_tokens is None,
        report.kv_bytes_per_token is None,
    )


def make(random: Random) -> bytes:
    """Some lines."""
    return b"\n".join(
        bytes((random.getrandbits(8),)) + logs.line(random).encode() for _ in range(1 + random.getrandbits(2))
    )


TARGET = Target(
    about="incidents counted and the cache's size learned from a log",
    make=make,
    check=check,
    words=tuple(word.encode() for word in (*logs.words(), *logs.NUMBERS)),
    longest_bytes=3000,
)
