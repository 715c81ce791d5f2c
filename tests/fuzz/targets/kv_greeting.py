"""How a publisher of KV events greets: bytes on a socket, up to the first messages behind the greeting."""

import socket
from contextlib import suppress
from random import Random
from unittest.mock import patch

from kvpressure.model.errors import SourceError
from kvpressure.sources.kv_events import connection, zmtp
from kvpressure.sources.kv_events.memory import Memory
from tests.fuzz.target import LONGEST_BYTES, Target, expect

_ANSWERED_BYTES = len(zmtp.greeting()) + len(zmtp.ready("SUB")) + 2 * LONGEST_BYTES
"""A pong is no longer than its ping, and 24 bytes at most."""


def check(data: bytes) -> tuple[object, ...]:
    """Greeted, or a SourceError; what is left open is closed, and what is answered is no longer than what came."""
    ours, theirs = socket.socketpair()
    with theirs, patch.object(connection, "_connected", lambda *_: ours):
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            greeted = connection.Connection("publisher", 5557, "SUB", Memory())
        except SourceError as error:
            expect(ours.fileno() < 0, "a refused connection stays open")
            expect(len(str(error)) < 400, "an error without an end", str(error))
            return ("refused", error.reason)
        frames = 0
        with greeted, suppress(SourceError, BlockingIOError):  # of one that reads no answer to its pings
            while greeted.receive(0.01):
                frames += sum(len(parts) for parts in greeted.messages())
        expect(ours.fileno() < 0, "a connection stays open")
        theirs.setblocking(False)
        with suppress(BlockingIOError):
            answered = theirs.recv(1 << 20)
            expect(len(answered) <= _ANSWERED_BYTES, "more is answered than came", len(answered))
        return ("greeted", min(frames, 4))


def make(random: Random) -> bytes:
    """A greeting with commands before or behind READY, and messages; or something else in a place."""
    hello = zmtp.greeting() if random.randrange(8) else random.randbytes(random.randrange(80))
    commands = (zmtp.ready("PUB"), _command(b"\x04PING" + bytes(random.randrange(30))), _command(b"\x05ERRORwhy"))
    parts = [random.choice(commands) for _ in range(random.choice((1, 2, 3, 20, 200)))]
    parts.append(zmtp.message(b"", bytes(8), b"x"))
    return b"".join([hello, *parts])[:LONGEST_BYTES]


def _command(body: bytes) -> bytes:
    return bytes([4, len(body)]) + body


TARGET = Target(
    about="greetings of a publisher of KV events",
    make=make,
    check=check,
    words=(b"\x05READY", b"\x04PING", b"\x05ERROR", b"\x04\x00", b"\x06" + b"\xff" * 8, b"NULL", b"PLAIN", b"\x7f\x03"),
)
