"""Messages of a forwarded port: the connection's bytes, whatever the messages they come in, or a KubeError."""

from __future__ import annotations

from random import Random

from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.port_forward import LONGEST_ERROR_BYTES, Frames, explain_forward
from tests.fuzz.target import Target, expect

_PORT = 8000
_OPENED = _PORT.to_bytes(2, "little")


def check(data: bytes) -> tuple[object, ...]:
    """An input is messages of up to 255 bytes, each behind its length; then its own bytes, sent in pieces."""
    frames = Frames(_PORT)
    at, got, refused = 0, b"", False
    while at < len(data) and not refused:
        end = at + 1 + data[at]
        try:
            got += frames.feed(data[at + 1 : end])
        except KubeError as error:
            expect(len(str(error)) < 500, "a sentence without an end")
            refused = True
        at = end
    expect(
        len(got) <= len(data) and len(frames.error.encode()) <= 3 * LONGEST_ERROR_BYTES, "more comes out than went in"
    )
    expect(0 < len(explain_forward(frames.error, "n/p", _PORT)) < 1000, "no sentence, or one without an end")
    size = 1 + (data[0] % 7 if data else 0)
    stream = _OPENED + data
    pieces = Frames(_PORT)
    again = b"".join(pieces.feed(b"\x00" + stream[n : n + size]) for n in range(0, len(stream), size))
    expect(again == data, "the connection's bytes come out otherwise", (data, again))
    return (refused, bool(got), frames.error != "")


def make(random: Random) -> bytes:
    """Both channels opened, then messages."""
    messages = [b"\x00" + _OPENED, b"\x01" + _OPENED] if random.getrandbits(2) else []
    for _ in range(random.getrandbits(3)):
        text = random.choice(
            (b"", b"x", b"connection refused", b"pod not found", random.randbytes(random.getrandbits(4)))
        )
        messages.append(bytes((random.choice((0, 0, 1, 2)),)) + text)
    return b"".join(bytes((len(one),)) + one for one in messages)


TARGET = Target(
    about="messages of a port-forward",
    make=make,
    check=check,
    words=(b"\x03\x00" + _OPENED, b"\x03\x01" + _OPENED, b"refused", b"not found", b"\x00", b"\x01"),
    longest_bytes=600,
)
