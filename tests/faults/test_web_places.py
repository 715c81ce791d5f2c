"""Who holds the places of others: connections up to the limit, handshakes that stall, and no descriptor left."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from pathlib import Path

import pytest
import structlog

from kvpressure.web.server import REFRESH_SECONDS
from tests.support import virtual_time
from tests.support.certificates import authority
from tests.support.web_kit import HALF_A_HEAD, METRICS, get, serving

CROWD = "127.0.0.2"


@pytest.mark.fault(
    "clients take every place and send nothing",
    "new clients are served at once; the connection that is silent for longest is closed",
)
def test_a_newcomer_takes_the_place_of_the_longest_silent() -> None:
    async def story() -> None:
        async with serving(most=8) as served:
            silent = [await served.client() for _ in range(8)]
            await asyncio.sleep(1)
            for number in range(1, 4):
                assert (await served.get("/metrics"))[0] == 200
                assert [await one.gone() for one in silent] == [True] * number + [False] * (8 - number)
                assert len(served.server.connections) == 8

    virtual_time.run(story())


@pytest.mark.fault(
    "one address takes every place, again and again",
    "connections of others stay, also idle ones; the address loses its own",
)
def test_one_address_displaces_only_itself() -> None:
    async def story() -> None:
        async with serving(most=8) as served:
            prometheus = await served.client()
            assert (await prometheus.ask())[0] == 200
            for _ in range(40):
                await served.client(HALF_A_HEAD, host=CROWD)
            await asyncio.sleep(3)
            assert len(served.server.connections) == 8
            assert served.refused == {"full": 33}
            assert (await prometheus.ask())[0] == 200

    virtual_time.run(story())


@pytest.mark.fault(
    "connections without requests come from the address of a Prometheus (a proxy, a NAT)",
    "they are closed before its connection, although that is the oldest",
)
def test_behind_one_address_those_that_never_asked_give_way_first() -> None:
    async def story() -> None:
        async with serving(most=8) as served:
            prometheus = await served.client()
            assert (await prometheus.ask())[0] == 200
            for _ in range(40):
                await served.client(HALF_A_HEAD)
            await asyncio.sleep(3)
            assert served.refused == {"full": 33}
            assert (await prometheus.ask())[0] == 200

    virtual_time.run(story())


@pytest.mark.fault(
    "connections arrive faster than the server can accept them",
    "accepted connections are read before any is closed: the rest wait in the kernel's queue, and all requests are "
    "answered",
)
def test_whoever_has_come_is_heard_before_he_gives_way() -> None:
    async def story() -> None:
        async with serving(most=64) as served:
            crowd = [await served.client(METRICS if number % 4 == 0 else HALF_A_HEAD) for number in range(800)]
            for asking in crowd[::4]:
                assert (await asking.answer())[0] == 200
            assert len(served.server.connections) <= 64

    virtual_time.run(story())


@pytest.mark.fault(
    "more scrapers than there are places, among clients that reconnect repeatedly and send nothing",
    "each scrape is answered",
)
def test_more_scrapers_than_places_are_all_answered() -> None:
    async def story() -> None:
        async with serving(most=64) as served:

            async def silent() -> None:
                while True:
                    client = await served.client()
                    await client.reader.read()

            crowd = [asyncio.create_task(silent()) for _ in range(100)]
            for _ in range(3):
                scrapers = [asyncio.create_task(served.get("/metrics")) for _ in range(150)]
                async with asyncio.timeout(1):
                    assert {(await scraper)[0] for scraper in scrapers} == {200}
                await asyncio.sleep(1)
            for one in crowd:
                one.cancel()

    virtual_time.run(story())


@pytest.mark.fault(
    "thousands of clients connect at once and send nothing",
    "connections beyond the limit are dropped at once, and those that send a request are answered",
)
def test_a_flood_of_silent_connections_is_dropped_at_the_door() -> None:
    async def story() -> None:
        async with serving(most=64) as served:
            before = asyncio.get_running_loop().time()
            silent = [asyncio.create_task(served.client()) for _ in range(500)]
            asking = await served.client(METRICS)
            assert (await asking.answer())[0] == 200
            assert asyncio.get_running_loop().time() - before < 2
            await asyncio.gather(*silent)
            await asyncio.sleep(3)
            assert served.refused["full"] >= 400
            assert len(served.server.connections) == 64

    virtual_time.run(story())


@pytest.mark.fault(
    "clients begin a handshake of TLS and stall", "each is dropped after 10 s; others are served meanwhile"
)
def test_handshakes_that_stall_are_dropped(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    certificate, key = ca.issue("web")
    config = tmp_path / "web.yml"
    config.write_text(f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n")
    trusting = ssl.create_default_context(cafile=ca.ca_file)

    async def story() -> None:
        async with serving(config=config, most=20) as served:
            stalled = [await served.client(begun) for begun in (b"", b"\x16\x03\x01\x02\x00\x01\x00") for _ in range(5)]
            trusted = await served.client(ssl=trusting)
            assert (await trusted.ask())[0] == 200
            await asyncio.sleep(9)
            assert not any([await one.gone() for one in stalled])
            await asyncio.sleep(3)
            assert all([await one.gone() for one in stalled])
            assert served.refused == {"slow_request": 10}
            rude = await served.client(METRICS)
            assert await rude.gone()
            assert served.refused["tls_handshake"] == 1
            for _ in range(30):  # a full table gives up handshakes first
                await served.client(b"")
            await asyncio.sleep(2)
            assert (await trusted.ask())[0] == 200
            assert len(served.server.connections) == 20

    virtual_time.run(story())


@pytest.mark.fault(
    "no file descriptor is left for a connection (EMFILE)",
    "one line a minute with a count, five attempts a second; an idle connection is closed; then it continues",
)
def test_no_descriptor_left_is_told_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []
    accept = socket.socket.accept

    def starved(_: socket.socket) -> tuple[socket.socket, object]:
        attempts.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    async def story() -> None:
        async with serving() as served:
            idle = await served.client()
            assert (await idle.ask())[0] == 200
            with structlog.testing.capture_logs() as lines:
                monkeypatch.setattr(socket.socket, "accept", starved)
                waiting = await served.client(METRICS)
                await asyncio.sleep(1)
                assert await idle.gone()
                await asyncio.sleep(149)
                monkeypatch.setattr(socket.socket, "accept", accept)
                assert (await waiting.answer())[0] == 200
            assert 700 <= len(attempts) <= 760
            assert [line["times"] for line in lines] == [1, 300, 300]
            assert "LimitNOFILE" in lines[0]["event"]
            assert served.refused["no_file_descriptor"] == len(attempts)

    virtual_time.run(story())


@pytest.mark.fault("clients send data that is not HTTP", "each is answered 400 and dropped, without a line of log")
async def test_requests_that_are_none_write_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        with structlog.testing.capture_logs() as lines:
            for garbage in (
                b"\x16\x03\x01\x00\x00\r\n\r\n",
                b"GET / HTTP/9\r\n\r\n",
                b"GET / HTTP/1.1\r\n\0: x\r\n\r\n",
            ) * 20:
                client = await served.client(garbage)
                assert (await client.answer())[0] == 400
                assert await client.gone()
        assert (lines, caplog.records) == ([], [])
        assert (await served.get("/metrics"))[0] == 200


async def test_an_error_of_ours_is_told_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        monkeypatch.setattr(served.server._site._scrapes, "answer", lambda *_: 1 / 0)
        with structlog.testing.capture_logs() as lines:
            for _ in range(20):
                assert (await served.get("/metrics"))[0] == 500
        assert [line["event"] for line in lines] == ["a request could not be answered"]
        assert "ZeroDivisionError" in lines[0]["error"]


def test_a_new_configuration_of_tls_ends_the_connections_made_before(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    certificate, key = ca.issue("web")
    config = tmp_path / "web.yml"
    config.write_text("")

    async def story() -> None:
        async with serving(config=config) as served:
            following = asyncio.create_task(served.server.follow())
            plain = await served.client()
            assert (await plain.ask(get("/metrics")))[0] == 200
            config.write_text(f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n")
            await asyncio.sleep(3 * REFRESH_SECONDS)
            assert await plain.gone()
            trusted = await served.client(ssl=ssl.create_default_context(cafile=ca.ca_file))
            assert (await trusted.ask())[0] == 200
            following.cancel()

    virtual_time.run(story())
