"""Changes bytes at random: what parsers trip over is put in, taken out, doubled and cut."""

from collections.abc import Sequence
from random import Random

NUMBERS = (
    *(
        b"0",
        b"-0",
        b"-1",
        b"1",
        b"007",
        b"1e400",
        b"1e-400",
        b"1e999Gi",
        b"1_0",
        b"0x10",
        b"NaN",
        b"nan",
        b"+Inf",
        b"inf",
    ),
    *(b"9223372036854775808", b"18446744073709551616", b"2147483648", b"65536", b"1.7976931348623157e308", b"5e-324"),
    *(b"9" * 19, b"9" * 400, b"0." + b"0" * 320 + b"1", b"1e", b".", b"1.", b".5", b"\xd9\xa3", b"\xc2\xb2"),
)
TROUBLE = (
    *(b"\x00", b"\n", b"\r\n", b"\r", b"\t", b"\x0b", b"\x1b[0m", b"\x85", b"\xa0", b"\xff", b"\xc3", b"\xed\xa0\x80"),
    *("\u2028\u0130\u212a\ufeff\u202e\u00df".encode(), "\U0001f600".encode(), b'"', b"'", b"\\", b"\\\\", b"\\u0000"),
    *(
        b"\\ud800",
        b"{",
        b"}",
        b"[",
        b"]",
        b"(",
        b")",
        b"$(",
        b"${",
        b"`",
        b"<<",
        b"&a ",
        b"*a",
        b"!!",
        b"---",
        b"#",
        b"%",
    ),
)


def mutated(random: Random, data: bytes, other: bytes, words: Sequence[bytes], longest_bytes: int) -> bytes:
    """`data` with one to eight changes; `other` is another input that pieces may be taken from."""
    for _ in range(1 << random.getrandbits(2)):
        data = _OPERATIONS[random.getrandbits(4) % len(_OPERATIONS)](random, data, other, words)
        if len(data) > longest_bytes:
            at = random.randrange(len(data) - longest_bytes + 1)
            data = data[at : at + longest_bytes]
    return data


def span(random: Random, data: bytes) -> tuple[int, int]:
    """Where a piece of `data` begins and ends; short ones are the likelier."""
    if not data:
        return 0, 0
    start = int(random.random() * len(data))
    return start, min(len(data), start + 1 + int(len(data) * random.random() ** 4))


def _flip(random: Random, data: bytes, _other: bytes, _words: Sequence[bytes]) -> bytes:
    at, _ = span(random, data)
    return data[:at] + bytes((random.getrandbits(8),)) + data[at + 1 :]


def _bit(random: Random, data: bytes, _other: bytes, _words: Sequence[bytes]) -> bytes:
    at, _ = span(random, data)
    return data[:at] + bytes(byte ^ 1 << random.getrandbits(3) for byte in data[at : at + 1]) + data[at + 1 :]


def _delete(random: Random, data: bytes, _other: bytes, _words: Sequence[bytes]) -> bytes:
    start, end = span(random, data)
    return data[:start] + data[end:]


def _double(random: Random, data: bytes, _other: bytes, _words: Sequence[bytes]) -> bytes:
    start, end = span(random, data)
    return data[:end] + data[start:end] * (1 << random.getrandbits(2)) + data[end:]


def _many(random: Random, data: bytes, _other: bytes, _words: Sequence[bytes]) -> bytes:
    start, end = span(random, data)
    piece = data[start:end][:16]
    return data[:start] + piece * (random.getrandbits(9) if random.getrandbits(3) == 0 else 2) + data[end:]


def _move(random: Random, data: bytes, _other: bytes, _words: Sequence[bytes]) -> bytes:
    start, end = span(random, data)
    rest = data[:start] + data[end:]
    at, _ = span(random, rest)
    return rest[:at] + data[start:end] + rest[at:]


def _cut(random: Random, data: bytes, _other: bytes, _words: Sequence[bytes]) -> bytes:
    start, _ = span(random, data)
    return data[:start] if random.getrandbits(1) else data[start:]


def _splice(random: Random, data: bytes, other: bytes, _words: Sequence[bytes]) -> bytes:
    at, _ = span(random, data)
    start, end = span(random, other)
    return data[:at] + other[start:end] + data[at:]


def _graft(random: Random, data: bytes, other: bytes, _words: Sequence[bytes]) -> bytes:
    at, _ = span(random, data)
    start, _ = span(random, other)
    return data[:at] + other[start:]


def _word(random: Random, data: bytes, _other: bytes, words: Sequence[bytes]) -> bytes:
    start, end = span(random, data)
    pool = words if words and random.getrandbits(1) else TROUBLE
    return data[:start] + random.choice(pool) + data[end if random.getrandbits(1) else start :]


def _number(random: Random, data: bytes, _other: bytes, _words: Sequence[bytes]) -> bytes:
    """Another number where one stands, if there is one near."""
    start, _ = span(random, data)
    end = start
    while start > 0 and data[start - 1 : start].isdigit():
        start -= 1
    while end < len(data) and data[end : end + 1].isdigit():
        end += 1
    return data[:start] + random.choice(NUMBERS) + data[end:]


_OPERATIONS = (
    _flip,
    _bit,
    _delete,
    _double,
    _many,
    _move,
    _cut,
    _splice,
    _graft,
    _word,
    _word,
    _word,
    _number,
    _number,
)
