"""What a log line tells: an answer for every line, and none that skimming would miss."""

from random import Random

from kvpressure.model.environment import LOG_KINDS
from kvpressure.sources.logs.classify import locate, plain, quotes_request, telling_lines
from tests.fuzz import logs
from tests.fuzz.target import Target, expect


def check(data: bytes) -> tuple[object, ...]:
    """Kinds are known, places are inside the line, nothing quoted counts, and the skimmed line tells the same."""
    raw = data.replace(b"\n", b" ")
    text = plain(raw.decode("utf-8", "replace"))
    found = locate(text)
    skimmed = telling_lines(raw)
    expect(skimmed in ([], [raw]), "skimming gives other lines than those of the block", raw)
    if found is not None:
        kind, start = found
        expect(kind in LOG_KINDS or kind == "kv_capacity", "an unknown kind", kind)
        expect(0 <= start < len(text), "the telling words begin outside the line", (text, start))
        expect(not quotes_request(text), "a line that quotes a request tells something", text)
        expect(skimmed or "\x1b" in raw.decode("utf-8", "replace"), "skimming misses a line that tells something", raw)
    return (found[0] if found else None, bool(skimmed), quotes_request(text))


def make(random: Random) -> bytes:
    """A line."""
    return logs.line(random).encode()


TARGET = Target(
    about="what a line of vLLM's log tells (the classifier)",
    make=make,
    check=check,
    seeds=lambda: [line.encode() for line in logs.recorded()],
    words=tuple(word.encode() for word in logs.words()),
    longest_bytes=500,
)
