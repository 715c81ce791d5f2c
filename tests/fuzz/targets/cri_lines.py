"""Lines out of a container runtime's log: what was wrapped comes out again, in whatever pieces the file is read."""

import json
from random import Random

from kvpressure.sources.logs.lines import MAX_RAW_BYTES, MAX_TEXT_BYTES, Assembler, Line
from tests.fuzz import logs
from tests.fuzz.target import Target, expect

_STAMP = "2024-01-01T00:00:00.123456789Z"


def check(data: bytes) -> tuple[object, ...]:
    """Any bytes: read at once and in pieces. Their lines, wrapped as the CRI and as docker do: unwrapped again."""
    whole = Assembler()
    found = [*whole.feed(data), *whole.end()]
    size = 1 + data[0] % 37 if data else 1
    pieces = Assembler()
    again = [line for at in range(0, len(data), size) for line in pieces.feed(data[at : at + size])]
    again += pieces.end()
    expect(again == found, "read in pieces the lines are others", (found, again))
    expect(all(len(line.text) <= MAX_TEXT_BYTES for line in found), "a line without an end")
    expect(
        sum(map(len, whole._pieces.values())) + len(whole._rest) <= MAX_RAW_BYTES + 2 * MAX_TEXT_BYTES, "too much held"
    )
    texts = [text.rstrip("\r") for text in data.decode("utf-8", "replace").split("\n")][:8]
    _unwraps(_cri(texts, size), texts, "what the CRI wrapped is not what comes out")
    _unwraps(_docker(texts, size), texts, "what docker wrapped is not what comes out")
    return (
        len(found).bit_length(),
        bool(found and found[0].stamp),
        bool(whole._pieces),
        sum(x.t is None for x in found) > 0,
    )


def _unwraps(wrapped: bytes, texts: list[str], what: str) -> None:
    assembler = Assembler()
    found = [*assembler.feed(wrapped[:50]), *assembler.feed(wrapped[50:])]
    expect(found == [Line(text, _STAMP) for text in texts], what, (wrapped, found))


def _cri(texts: list[str], size: int) -> bytes:
    """As containerd writes it: pieces of at most `size` bytes, all but a line's last marked P."""
    lines = []
    for text in texts:
        raw = text.encode()
        pieces = [raw[at : at + 40 * size] for at in range(0, len(raw), 40 * size)] or [b""]
        marks = [b"P"] * (len(pieces) - 1) + [b"F"]
        lines += [b"%s stdout %s %s\n" % (_STAMP.encode(), mark, one) for mark, one in zip(marks, pieces, strict=True)]
    # A piece that ends in a carriage return loses it, as does a line: not a matter of pieces.
    return b"".join(lines) if not any(line.endswith(b"\r\n") for line in lines) else _cri(texts, 1 << 20)


def _docker(texts: list[str], size: int) -> bytes:
    lines = []
    for text in texts:
        pieces = [text[at : at + 40 * size] for at in range(0, len(text), 40 * size)] or [""]
        if any(piece.endswith("\r") for piece in pieces):
            pieces = [text]
        for number, piece in enumerate(pieces, 1):
            log = piece + ("\n" if number == len(pieces) else "")
            lines.append(json.dumps({"log": log, "stream": "stderr", "time": _STAMP}, separators=(",", ":")) + "\n")
    return "".join(lines).encode()


def make(random: Random) -> bytes:
    """A file of some lines of one format or of several."""
    lines = []
    for _ in range(random.getrandbits(3)):
        text, choice = logs.line(random), random.getrandbits(2)
        if choice == 0:
            lines.append(text)
        elif choice == 1:
            record = {"log": text + "\n" * random.getrandbits(1), "stream": random.choice(("stdout", "stderr"))}
            lines.append(json.dumps(record, separators=(",", ":")))
        else:
            mark = random.choice(("F", "F", "P", "P:x", "X", ""))
            lines.append(f"{_STAMP} {random.choice(('stdout', 'stderr'))} {mark} {text}")
    return random.choice(("\n", "\n", "\r\n")).join(lines).encode() + b"\n" * random.getrandbits(1)


TARGET = Target(
    about="log lines as the CRI and docker wrap them, in pieces of any size",
    make=make,
    check=check,
    words=(
        b" stdout F ",
        b" stdout P ",
        b" stderr F ",
        _STAMP.encode(),
        b'{"log":',
        b'\\n","',
        b'"stream":"stderr"',
        b'"time":',
    ),
    longest_bytes=1000,
)
