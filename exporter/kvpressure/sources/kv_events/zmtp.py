"""PURE: the wire of ZeroMQ (ZMTP 3.0, RFC 23) as far as a subscriber needs it, with a bound on every message.

Not libzmq: its high-water mark counts whole messages and its size limit single frames, so that a message which never
ends fills memory (decision 0420).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

GREETING_BYTES: Final = 64
_SIGNATURE_BYTES: Final = 10
_MORE = 1
_LONG = 2
_COMMAND = 4
_MAX_PARTS: Final = 8
_MAX_COMMAND_BYTES: Final = 4096
_RECEIVE_BYTES: Final = 64 << 10
_SHORT_BYTES: Final = 64 << 10
"""Of a message for which nothing has to be reserved."""


class ProtocolError(Exception):
    """The other side speaks no ZMTP, or no version or mechanism of it that is known here."""


def greeting() -> bytes:
    """Return what both sides begin with: version 3.0, no authentication."""
    return b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def check_greeting(data: bytes) -> None:
    """Raise ProtocolError unless `data` are the 64 bytes of a peer that requires no authentication."""
    if data[:1] != b"\xff" or data[_SIGNATURE_BYTES - 1 : _SIGNATURE_BYTES] != b"\x7f" or data[10] < 3:
        raise ProtocolError("what listens there does not speak ZeroMQ 4 or later")
    if data[12:32].rstrip(b"\0") != b"NULL":
        raise ProtocolError("the publisher wants authentication, which engines do not")


def ready(kind: str) -> bytes:
    """Return the command that says what kind of socket this is."""
    properties = (("Socket-Type", kind), ("Identity", "")) if kind == "DEALER" else (("Socket-Type", kind),)
    body = b"\x05READY"
    for name, value in properties:
        body += bytes([len(name)]) + name.encode() + len(value).to_bytes(4, "big") + value.encode()
    return bytes([_COMMAND, len(body)]) + body


def message(*frames: bytes) -> bytes:
    """Return a message of these frames, each shorter than 256 bytes."""
    last = len(frames) - 1
    return b"".join(bytes([_MORE if i < last else 0, len(frame)]) + frame for i, frame in enumerate(frames))


def subscription(topic: bytes) -> bytes:
    """Return the request for all messages whose topic begins so."""
    return message(b"\x01" + topic)


class Room(Protocol):
    """Memory for long messages, which inboxes share."""

    def reserve(self, count: int) -> bool:
        """Reserve so many bytes; False where there are not so many."""

    def release(self, count: int) -> None:
        """Give so many bytes back."""


class Inbox:
    """Bytes in, messages out. What was read is overwritten with zeros when the next bytes are requested.

    A message of more than `max_bytes`, of more than there is `room` for, or of too many frames, is skipped and counted
    in `oversized`. `on_command` gets the body of each command.
    """

    def __init__(self, max_bytes: int, on_command: Callable[[bytes], None], room: Room) -> None:
        self._max_bytes, self._room = max_bytes, room
        self._on_command = on_command
        self._view = memoryview(bytearray(_SHORT_BYTES + _RECEIVE_BYTES))
        self._reserved = 0
        self._is_long = False
        """Whether the message under way is the one that something is reserved for."""
        self._begin = self._at = self._end = 0  # of the message under way; where to read on; of what has come
        self._parts: list[tuple[int, int]] = []
        self._skip: int | None = None
        self._skip_more = False
        self.oversized = 0

    def space(self) -> memoryview:
        """Return where the next bytes are to be received; what was read before is gone then."""
        begin, kept = self._begin, self._end - self._begin
        if begin:
            self._view[:kept] = self._view[begin : self._end]
            self._view[kept : self._end] = bytes(self._end - kept)
            self._parts = [(first - begin, last - begin) for first, last in self._parts]
            self._begin = 0
            self._at = self._at - begin
            self._end = kept
        if self._reserved and not self._is_long and kept <= _SHORT_BYTES:
            self._resize(_SHORT_BYTES)
            self._room.release(self._reserved)
            self._reserved = 0
        return self._view[self._end : self._end + _RECEIVE_BYTES]

    def wipe(self) -> None:
        """Overwrite all that has come, and give back what is reserved."""
        self._begin = self._at = self._end
        self._parts, self._is_long = [], False
        self.space()

    def _resize(self, count: int) -> None:
        old, self._view = self._view, memoryview(bytearray(count + _RECEIVE_BYTES))
        self._view[: self._end] = old[: self._end]
        old[:] = bytes(len(old))

    def _fits(self, count: int) -> bool:
        """Whether a message of so many bytes fits, once the room for it is reserved."""
        more = count - _SHORT_BYTES - self._reserved
        if count > self._max_bytes or (more > 0 and not self._room.reserve(more)):
            return False
        if more > 0:
            self._reserved += more
            self._resize(count)
        self._is_long = count > _SHORT_BYTES
        return True

    def received(self, count: int) -> Iterator[tuple[memoryview, ...]]:
        """Yield the messages that are complete with `count` bytes more; their frames are good until the next alone.

        An empty one is yielded after each command. Raises ProtocolError.
        """
        self._end += count
        while self._dropped() and (header := self._header()) is not None:
            flags, begin, length = header
            end = begin + length
            if flags & _COMMAND:
                if length > _MAX_COMMAND_BYTES or flags & _MORE or self._parts or self._skip_more:
                    raise ProtocolError("a command of ZeroMQ is too long, or inside of a message")
                if self._end < end:
                    return
                self._begin = self._at = end
                self._on_command(bytes(self._view[begin:end]))
                yield ()
            elif self._skip_more or len(self._parts) == _MAX_PARTS or not self._fits(end - self._begin):
                self._skip, self._skip_more = length, bool(flags & _MORE)
                self._parts.clear()
                self._is_long = False
                self._begin = self._at = begin
            elif self._end < end:
                return
            else:
                self._at = end
                self._parts.append((begin, end))
                if not flags & _MORE:
                    parts, self._parts = tuple(self._view[first:last] for first, last in self._parts), []
                    self._begin, self._is_long = end, False
                    yield parts

    def _header(self) -> tuple[int, int, int] | None:
        """Return flags, begin and length of the next frame; None where they have not come. Raises ProtocolError."""
        at, there = self._at, self._end - self._at
        flags = self._view[at] if there else 0
        if flags & ~(_MORE | _LONG | _COMMAND):
            raise ProtocolError("what comes are no frames of ZeroMQ")
        wide = 8 if flags & _LONG else 1
        if there < 1 + wide:
            return None
        return flags, at + 1 + wide, int.from_bytes(self._view[at + 1 : at + 1 + wide], "big")

    def _dropped(self) -> bool:
        """Drop what has come of a frame that is skipped; whether there is anything behind it."""
        if self._skip is None:
            return True
        count = min(self._skip, self._end - self._at)
        self._skip -= count
        self._begin = self._at = self._at + count
        if self._skip:
            return False
        self._skip = None
        self.oversized += not self._skip_more
        return True
