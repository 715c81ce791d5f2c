"""Following a publisher: pyzmq's own sockets on loopback, gaps and replays, and publishers that mean harm."""

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

pytest.importorskip("zmq", reason="pyzmq publishes for these tests: pip install -r requirements/dev.txt")

from kvpressure.model.kv_events import KvEvents
from kvpressure.net.budget import Budget, Share
from kvpressure.sources.kv_events import feed as feeds
from kvpressure.sources.kv_events import zmtp
from kvpressure.sources.kv_events.feed import Address, Feed
from kvpressure.sources.kv_events.memory import ALL_BYTES, ENTRY_BYTES, MAX_ENTRIES, Memory
from tests.support.kv_publisher import CLEARED, Publisher, as_array, payload, removed, stored, wait_for

NAMES = [bytes([number]) * 32 for number in range(8)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(feeds, "REPORT_SECONDS", 0.05)
    monkeypatch.setattr(feeds, "GATHER_SECONDS", 0.005)
    monkeypatch.setattr(feeds, "FIRST_WAIT_SECONDS", 0.05)


def new_feed(address: Address) -> Feed:
    return Feed(address, Budget().share("kv_events").feed(), Memory())


@contextmanager
def following(port: int, **more: object) -> Iterator[Feed]:
    feed = new_feed(Address("127.0.0.1", port, **more))
    feed.start()
    try:
        yield feed
    finally:
        feed.stop()
        feed.thread.join(10)
        assert not feed.thread.is_alive()


def counted(feed: Feed, kind: str, times: int = 1) -> KvEvents:
    wait_for(lambda: feed.report is not None and feed.report.counts.get(kind, 0) >= times)
    assert feed.report is not None
    return feed.report


@pytest.mark.parametrize("form", [lambda event: event, as_array], ids=["maps", "arrays"])
def test_misses_are_counted_from_what_a_publisher_sends(form):
    with Publisher() as publisher, following(publisher.port) as feed:
        assert publisher.subscribed() == b""
        publisher.send(form(stored(NAMES[:4])), rank=0)
        publisher.send(form(removed(NAMES[3])), form(removed(NAMES[2])), rank=0)
        publisher.send(form(stored(NAMES[2:4], parent=NAMES[1])), {"type": "New"}, rank=0)
        report = counted(feed, "batches", 3)
        assert (report.missed_tokens, report.misses, report.evicted_blocks, report.rank) == (32.0, 2, 2, 0)
        assert report.counts["unknown"] == 1
        assert feed.error is None


def test_only_the_requested_topic_comes():
    with Publisher(topic=b"kv-events") as publisher, following(publisher.port, topic="kv") as feed:
        assert publisher.subscribed() == b"kv"
        publisher.send(removed(NAMES[0]))
        assert counted(feed, "batches").evicted_blocks == 1


@pytest.mark.parametrize("with_topic", [True, False], ids=["0.33", "0.12"])
def test_what_is_missing_is_fetched_from_the_replay_socket(with_topic):
    with Publisher(replays=True, with_topic=with_topic, topic=b"kv") as publisher:
        with following(publisher.port, replay_port=publisher.replay_port) as feed:
            publisher.subscribed()
            publisher.send(stored(NAMES[:2]))
            for name in NAMES[:2]:
                publisher.send(removed(name), lost=True)
            publisher.send(stored(NAMES[:2]))
            report = counted(feed, "batches", 4)
        assert report.missed_tokens == 32.0
        assert (report.counts["gaps"], report.counts["missing"], report.counts["replayed"]) == (1, 2, 2)
        assert "forgotten" not in report.counts
        assert publisher.asked == [1]


def test_without_a_replay_what_was_evicted_is_forgotten():
    with Publisher() as publisher, following(publisher.port) as feed:
        publisher.subscribed()
        publisher.send(removed(*NAMES[:2]))
        publisher.send(removed(NAMES[2]), lost=True)
        publisher.send(stored(NAMES[:2]))
        report = counted(feed, "batches", 2)
        assert (report.missed_tokens, report.reach) == (0.0, 0)
        assert (report.counts["gaps"], report.counts["missing"], report.counts["forgotten"]) == (1, 1, 1)


def test_a_replay_that_has_not_all_of_it_makes_it_forget():
    with Publisher(replays=True) as publisher:
        with following(publisher.port, replay_port=publisher.replay_port) as feed:
            publisher.subscribed()
            publisher.send(removed(*NAMES[:2]))
            publisher.send(removed(NAMES[2]), lost=True)
            publisher.send(removed(NAMES[3]), lost=True)
            del publisher.kept[1]
            publisher.send(stored(NAMES[:2]))
            report = counted(feed, "batches", 2)
        assert report.missed_tokens == 0.0
        assert (report.counts["missing"], report.counts["replayed"], report.counts["forgotten"]) == (2, 0, 1)


def test_a_publisher_that_has_gaps_again_and_again_gets_no_request_each_time():
    with Publisher(replays=True) as publisher:
        with following(publisher.port, replay_port=publisher.replay_port) as feed:
            publisher.subscribed()
            for _ in range(5):
                publisher.send(removed(NAMES[0]))
                publisher.send(removed(NAMES[1]), lost=True)
            publisher.send(CLEARED)
            report = counted(feed, "cleared")
        assert report.counts["gaps"] == 5
        assert len(publisher.asked) == 1


def test_a_replay_socket_that_is_silent_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(feeds, "REPLAY_SECONDS", 0.1)
    monkeypatch.setattr("kvpressure.sources.kv_events.connection.HANDSHAKE_SECONDS", 0.3)
    with (
        Publisher() as publisher,
        listening(lambda _: None) as port,
        following(publisher.port, replay_port=port) as feed,
    ):
        publisher.subscribed()
        publisher.send(removed(NAMES[0]))
        publisher.send(removed(NAMES[1]), lost=True)
        publisher.send(CLEARED)
        assert counted(feed, "cleared").counts["forgotten"] == 1


def test_a_publisher_that_counts_from_zero_again_was_restarted():
    with Publisher() as publisher, following(publisher.port) as feed:
        publisher.subscribed()
        publisher.send(stored(NAMES[:2]))
        publisher.send(removed(*NAMES[:2]))
        publisher.number = 0
        publisher.send(stored(NAMES[:2]))
        report = counted(feed, "restarts")
        assert report.missed_tokens == 0.0
        assert "gaps" not in report.counts


def test_a_reset_of_the_cache_is_no_eviction():
    with Publisher() as publisher, following(publisher.port) as feed:
        publisher.subscribed()
        publisher.send(stored(NAMES[:2]), removed(NAMES[0]))
        publisher.send(CLEARED)
        publisher.send(stored(NAMES[:2]))
        report = counted(feed, "batches", 3)
        assert report.missed_tokens == 0.0


def test_bad_batches_and_messages_are_counted_and_the_next_is_read():
    with Publisher() as publisher, following(publisher.port) as feed:
        publisher.subscribed()
        publisher.send_frames(b"topic")
        publisher.send_frames(b"", b"123", b"payload")
        publisher.send_frames(b"", bytes(8), b"payload", b"more")
        publisher.send_payload(b"no batch")
        publisher.send(["BlockRemoved", "no list"])
        publisher.send(removed(NAMES[0]))
        report = counted(feed, "batches")
        assert report.counts["bad"] == 5
        assert report.evicted_blocks == 1


def test_a_batch_that_is_too_large_is_skipped_and_counted():
    with Publisher() as publisher, following(publisher.port) as feed:
        publisher.subscribed()
        publisher.send(removed(NAMES[0]))
        publisher.send_payload(bytes(5 << 20))
        publisher.send(removed(NAMES[1]))
        report = counted(feed, "batches", 2)
        assert (report.counts["gaps"], report.counts["oversized"]) == (1, 1)
        assert report.evicted_blocks == 2


def test_decoding_has_a_budget_beyond_which_batches_are_dropped(monkeypatch):
    monkeypatch.setattr(Share, "allows_work", lambda _: False)
    with Publisher() as publisher, following(publisher.port) as feed:
        publisher.subscribed()
        publisher.send(removed(NAMES[0]))
        report = counted(feed, "skipped")
        assert (report.evicted_blocks, report.reach) == (0, 0)


@pytest.mark.fault(
    "a publisher of KV events sends batches that are within all bounds, and dear to take in",
    "taking in is cut off after the feed's share of CPU; what is dropped is counted, and what was evicted is forgotten",
)
def test_one_message_takes_no_more_cpu_than_a_feed_may():
    blocks = [number.to_bytes(32, "little") for number in range(1000)]
    dear = payload(*[event for _ in range(50) for event in (stored(blocks, size=1), removed(*blocks))])
    assert 3 << 20 < len(dear) < 4 << 20
    with Publisher() as publisher, following(publisher.port) as feed:
        publisher.subscribed()
        before = time.process_time()
        publisher.send_payload(dear)
        report = counted(feed, "skipped")
        assert time.process_time() - before < 1.0
        assert report.reach == 0
        assert "batches" not in report.counts


def test_feeds_share_the_memory_of_long_messages_and_blocks():
    memory = Memory()
    share = Budget().share("kv_events")
    feeds_in_force = [Feed(Address("127.0.0.1", 1), share.feed(), memory) for _ in range(64)]
    for feed in feeds_in_force:
        feed.start()
    assert memory.blocks * 64 * ENTRY_BYTES <= ALL_BYTES // 2
    for feed in feeds_in_force:
        feed.stop()
        feed.thread.join(10)
    assert memory.blocks == MAX_ENTRIES
    assert memory.reserve(ALL_BYTES // 4)
    assert not memory.reserve(1)
    memory.release(ALL_BYTES // 4)
    assert memory.reserve(1)


def test_a_silent_publisher_is_no_failure_and_is_left_at_once():
    with Publisher() as publisher, following(publisher.port) as feed:
        publisher.subscribed()
        wait_for(lambda: feed.report is not None)
        assert feed.error is None
        assert feed.report.evicted_blocks == 0


def test_a_publisher_that_comes_back_is_followed_again():
    first = Publisher()
    with following(first.port) as feed:
        with first:
            first.subscribed()
            first.send(removed(*NAMES[:2]))
            counted(feed, "batches")
        wait_for(lambda: feed.error is not None)
        with Publisher(port=first.port) as second:
            second.subscribed()
            second.send(stored(NAMES[:2]))
            report = counted(feed, "restarts")
            assert feed.error is None
            assert report.missed_tokens == 0.0


@contextmanager
def listening(serve) -> Iterator[int]:
    """A server on loopback that does with each connection what it likes."""
    server = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()
    connections: list[socket.socket] = []

    def run() -> None:
        while not ended.is_set():
            with suppress(OSError):
                connection, _ = server.accept()
                connections.append(connection)
                threading.Thread(target=serve_one, args=(connection,), daemon=True).start()

    def serve_one(connection: socket.socket) -> None:
        with suppress(OSError):
            serve(connection)

    server.settimeout(0.1)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        ended.set()
        thread.join(5)
        for connection in connections:
            connection.close()
        server.close()


def error_of(port: int) -> str:
    with following(port) as feed:
        wait_for(lambda: feed.error is not None)
        return feed.error.reason


def test_a_peer_that_is_no_publisher_is_an_error():
    def web(connection: socket.socket) -> None:
        connection.recv(64)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100))

    with listening(web) as port:
        assert error_of(port) == "not_zeromq"
    with listening(lambda connection: connection.close()) as port:
        assert error_of(port) in ("hung_up", "io")
    assert error_of(port) == "refused"


def test_whoever_greets_slowly_is_given_up(monkeypatch):
    monkeypatch.setattr("kvpressure.sources.kv_events.connection.HANDSHAKE_SECONDS", 0.3)

    def drip(connection: socket.socket) -> None:
        for byte in zmtp.greeting():
            connection.sendall(bytes([byte]))
            time.sleep(0.02)

    with listening(drip) as port:
        assert error_of(port) in ("timeout", "io")


@pytest.mark.fault(
    "a publisher of KV events sends pings or unknown commands without an end instead of greeting",
    "it is left after 16 of them; a message behind the command that ends the greeting, in one segment, is read",
)
@pytest.mark.parametrize("command", [b"\x04\x07\x04PING\x00\x00", b"\x04\x05\x04WHAT"])
def test_a_greeting_without_an_end_is_left(command: bytes):
    def endless(connection: socket.socket) -> None:
        connection.sendall(zmtp.greeting())
        threading.Thread(target=lambda: [None for _ in iter(lambda: connection.recv(4096), b"")], daemon=True).start()
        while True:
            connection.sendall(command * 1000)

    with listening(endless) as port:
        before = time.process_time()
        assert error_of(port) in ("not_zeromq", "io")
        assert time.process_time() - before < 1.0


def test_a_message_in_the_segment_of_the_greeting_is_read():
    def hasty(connection: socket.socket) -> None:
        first = zmtp.message(b"", bytes(8), payload(removed(NAMES[0])))
        connection.sendall(zmtp.greeting())
        connection.recv(64)
        connection.sendall(zmtp.ready("PUB") + first)
        while connection.recv(4096):
            pass

    with listening(hasty) as port, following(port) as feed:
        assert counted(feed, "batches").evicted_blocks == 1


def greet(connection: socket.socket) -> None:
    connection.sendall(zmtp.greeting() + zmtp.ready("PUB"))
    threading.Thread(target=lambda: [None for _ in iter(lambda: connection.recv(4096), b"")], daemon=True).start()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_message_without_an_end_does_not_fill_memory():
    sent = threading.Event()

    def endless(connection: socket.socket) -> None:
        greet(connection)
        frame = b"\x03" + struct.pack(">Q", 1 << 19) + bytes(1 << 19)
        for _ in range(200):  # 100 MiB
            connection.sendall(frame)
        sent.set()

    with listening(endless) as port:
        before = resident_bytes()
        with following(port) as feed:
            wait_for(sent.is_set, 60)
            assert resident_bytes() - before < 32 << 20
            assert feed.error is None


def test_it_ends_at_once_while_a_flood_comes():
    def flood(connection: socket.socket) -> None:
        greet(connection)
        while True:
            connection.sendall(b"\x00\x00" * 100_000)

    with listening(flood) as port, following(port) as feed:
        counted(feed, "bad", 1000)
        began = time.monotonic()
        feed.stop()
        feed.thread.join(10)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("host", ["169.254.169.254", "2852039166", "::ffff:169.254.169.254"])
def test_a_metadata_service_is_never_connected_to(host, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("connected"))
    feed = new_feed(Address(host, 5557))
    feed.start()
    wait_for(lambda: feed.error is not None)
    assert feed.error.reason == "refused_address"
    feed.stop()


def test_a_name_never_leads_to_a_metadata_service(monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 5557))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("connected"))
    feed = new_feed(Address("engine.example", 5557))
    feed.start()
    wait_for(lambda: feed.error is not None)
    assert feed.error.reason == "refused_address"
    feed.stop()
