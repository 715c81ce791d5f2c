"""The wire of ZeroMQ: what libzmq writes is read however it is cut, and nothing makes it keep more than its bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.sources.kv_events.memory import Memory
from kvpressure.sources.kv_events.zmtp import Inbox, ProtocolError, Room, check_greeting, greeting, message, ready

MAX = 1000


class Reader:
    """An inbox, and what came of it."""

    def __init__(self, room: Room | None = None, max_bytes: int = MAX) -> None:
        self.commands: list[bytes] = []
        self.inbox = Inbox(max_bytes, self.commands.append, room or Memory())
        self.messages: list[tuple[bytes, ...]] = []

    def feed(self, data: bytes, piece: int = 4096) -> Reader:
        for begin in range(0, len(data), piece):
            part = data[begin : begin + piece]
            space = self.inbox.space()
            space[: len(part)] = part
            self.messages += [tuple(map(bytes, frames)) for frames in self.inbox.received(len(part)) if frames]
        return self


def long_frame(length: int, *, more: bool = False) -> bytes:
    return bytes([2 | more]) + length.to_bytes(8, "big") + b"x" * length


@given(st.lists(st.lists(st.binary(max_size=200), min_size=1, max_size=4), max_size=6), st.integers(1, 300))
def test_messages_come_as_they_were_sent_however_they_are_cut(sent, piece):
    reader = Reader().feed(b"".join(message(*frames) for frames in sent), piece)
    assert reader.messages == [tuple(frames) for frames in sent]
    assert not reader.inbox.oversized


@given(st.integers(1, 700))
def test_a_message_that_is_too_long_is_skipped_and_the_next_is_read(piece):
    data = message(b"a") + long_frame(MAX + 1) + message(b"b", b"c") + long_frame(600, more=True) + long_frame(600)
    reader = Reader().feed(data + message(b"d"), piece)
    assert reader.messages == [(b"a",), (b"b", b"c"), (b"d",)]
    assert reader.inbox.oversized == 2


def test_a_message_without_an_end_is_not_kept():
    reader = Reader()
    for _ in range(200):
        reader.feed(long_frame(500, more=True))
    assert not reader.messages
    assert len(reader.feed(message(b"") + message(b"after")).messages) == 1
    assert reader.inbox.oversized == 1


def test_a_message_of_many_empty_frames_is_skipped():
    reader = Reader().feed(b"\x01\x00" * 10_000 + b"\x00\x00" + message(b"after"))
    assert reader.messages == [(b"after",)]
    assert reader.inbox.oversized == 1


def test_a_frame_that_says_it_is_endless_costs_nothing():
    reader = Reader().feed(b"\x02" + b"\xff" * 8 + b"x" * 100_000)
    assert not reader.messages
    assert not reader.inbox.oversized


def test_room_for_a_long_message_is_reserved_while_it_comes_and_given_back():
    class Bounded:
        reserved, most = 0, 300_000

        def reserve(self, count: int) -> bool:
            if self.reserved + count > self.most:
                return False
            self.reserved += count
            return True

        def release(self, count: int) -> None:
            self.reserved -= count

    room = Bounded()
    reader = Reader(room, 1 << 20)
    reader.feed(message(b"a") + long_frame(200_000)[:90_000], 50_000)
    assert room.reserved > 100_000
    reader.feed(long_frame(200_000)[90_000:] + long_frame(400_000) + message(b"b"), 50_000)
    assert [len(frames[0]) for frames in reader.messages] == [1, 200_000, 1]
    assert reader.inbox.oversized == 1
    reader.feed(message(b"c"))
    assert room.reserved == 0
    reader.feed(long_frame(200_000)[:90_000], 50_000)
    reader.inbox.wipe()
    assert room.reserved == 0


def test_commands_go_beside_messages():
    reader = Reader().feed(ready("PUB") + message(b"a") + b"\x04\x05\x04PING")
    assert [command[:6] for command in reader.commands] == [b"\x05READY", b"\x04PING"]
    assert reader.messages == [(b"a",)]


@pytest.mark.parametrize(
    "data",
    [b"HTTP/1.1 400 Bad Request", b"\x08\x00", b"\x01\x00\x04\x05\x04PING", b"\x06" + b"\xff" * 8, b"\x05\x01x"],
)
def test_what_is_no_zeromq_is_refused(data):
    with pytest.raises(ProtocolError):
        Reader().feed(data)


def test_what_was_read_is_overwritten():
    reader = Reader().feed(message(b"secret") + b"\x00\x06sec")
    kept = bytes(reader.inbox.space().obj)  # the whole buffer
    assert b"secret" not in kept
    assert kept.startswith(b"\x00\x06sec\x00")


def test_the_greeting_is_checked():
    check_greeting(greeting())
    check_greeting(greeting()[:11] + b"\x01" + greeting()[12:])  # libzmq says 3.1
    curve = greeting()[:12] + b"CURVE".ljust(20, b"\0") + bytes(32)
    for other in (bytes(64), b"SSH-2.0-OpenSSH".ljust(64, b"\0"), greeting()[:10] + b"\x01" + bytes(53), curve):
        with pytest.raises(ProtocolError):
            check_greeting(other)
