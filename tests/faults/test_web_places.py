"""Who holds the places of others: connections up to the limit, handshakes that stall, and no descriptor left."""

import asyncio
import errno
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from kvpressure.config.settings import WebSettings
from kvpressure.config.settings.keys import validate
from kvpressure.exposition import runbooks, status, text
from kvpressure.exposition.panel import ident
from kvpressure.web.scrapes import MAX_QUEUED, MAX_QUEUED_PER_CLIENT
from kvpressure.web.server import REFRESH_SECONDS, Listener
from tests.support.certificates import authority
from tests.support.virtual_time import on_virtual_time
from tests.support.web_kit import HALF_A_HEAD, METRICS, FakeExporter, Served, engines, get, serving, settled

CROWD = "127.0.0.2"


@pytest.mark.fault(
    "clients take every place and send nothing",
    "new clients are served at once; the connection that is silent for longest is closed",
)
@on_virtual_time
async def test_a_newcomer_takes_the_place_of_the_longest_silent() -> None:
    async with serving(most=8) as served:
        silent = [await served.client() for _ in range(8)]
        await asyncio.sleep(1)
        for number in range(1, 4):
            assert (await served.get("/metrics"))[0] == 200
            assert [await one.gone() for one in silent] == [True] * number + [False] * (8 - number)
            assert len(served.server.connections) == 8


@pytest.mark.fault(
    "one address takes every place, again and again",
    "connections of others stay, also idle ones; the address loses its own",
)
@on_virtual_time
async def test_one_address_displaces_only_itself() -> None:
    async with serving(most=8) as served:
        prometheus = await served.client()
        assert (await prometheus.ask())[0] == 200
        for _ in range(40):
            await served.client(HALF_A_HEAD, host=CROWD)
        await asyncio.sleep(3)
        assert len(served.server.connections) == 8
        assert served.refused == {"full": 33}
        assert (await prometheus.ask())[0] == 200


@pytest.mark.fault(
    "connections without requests come from the address of a Prometheus (a proxy, a NAT)",
    "they are closed before its connection, although that is the oldest",
)
@on_virtual_time
async def test_behind_one_address_those_that_never_asked_give_way_first() -> None:
    async with serving(most=8) as served:
        prometheus = await served.client()
        assert (await prometheus.ask())[0] == 200
        for _ in range(40):
            await served.client(HALF_A_HEAD)
        await asyncio.sleep(3)
        assert served.refused == {"full": 33}
        assert (await prometheus.ask())[0] == 200


@pytest.mark.fault(
    "connections arrive faster than the server can accept them",
    "accepted connections are read before any is closed: the rest wait in the kernel's queue, and all requests are "
    "answered",
)
@on_virtual_time
async def test_whoever_has_come_is_heard_before_he_gives_way() -> None:
    async with serving(most=64) as served:
        crowd = [await served.client(METRICS if number % 4 == 0 else HALF_A_HEAD) for number in range(800)]
        for asking in crowd[::4]:
            assert (await asking.answer())[0] == 200
        assert len(served.server.connections) <= 64


@pytest.mark.fault(
    "more scrapers than there are places, among clients that reconnect repeatedly and send nothing",
    "each scrape is answered",
)
@on_virtual_time
async def test_more_scrapers_than_places_are_all_answered() -> None:
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


@pytest.mark.fault(
    "thousands of clients connect at once and send nothing",
    "connections beyond the limit are dropped at once, and those that send a request are answered",
)
@on_virtual_time
async def test_a_flood_of_silent_connections_is_dropped_at_the_door() -> None:
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


@pytest.mark.fault(
    "clients begin a handshake of TLS and stall", "each is dropped after 10 s; others are served meanwhile"
)
@on_virtual_time
async def test_handshakes_that_stall_are_dropped(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    certificate, key = ca.issue("web")
    config = tmp_path / "web.yml"
    config.write_text(f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n")
    trusting = ssl.create_default_context(cafile=ca.ca_file)
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


@pytest.mark.fault(
    "no file descriptor is left for a connection (EMFILE)",
    "one line a minute with a count, five attempts a second; an idle connection is closed; then it continues",
)
@on_virtual_time
async def test_no_descriptor_left_is_told_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []
    accept = socket.socket.accept

    def starved(_: socket.socket) -> tuple[socket.socket, object]:
        attempts.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

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


@on_virtual_time
async def test_a_new_configuration_of_tls_ends_the_connections_made_before(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    certificate, key = ca.issue("web")
    config = tmp_path / "web.yml"
    config.write_text("")
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


# Requests that no cache answers, in a flood: pages of single engines, the diagnosis, runbooks.


class Held:
    """A function that counts its calls and waits in each until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()
        self.calls = 0
        self._real = getattr(module, name)
        monkeypatch.setattr(module, name, self)

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.calls += 1
        self.begun.set()
        self.go.wait()
        return self._real(*args, **more)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch, status, "status_html")
    yield held
    held.go.set()


def of_engines(count: int) -> tuple[FakeExporter, list[str]]:
    exporter = FakeExporter(engines(count))
    return exporter, [f"/?engine={ident(view.key)}" for view in exporter.current.engines]


async def flood(
    served: Served, paths: list[str], host: str = CROWD
) -> list[asyncio.Task[tuple[int, dict[str, str], bytes]]]:
    """Each path asked for at once; returns when the server has them all."""
    clients = [await served.client(get(path), host) for path in paths]
    answers = [asyncio.create_task(client.answer()) for client in clients]
    await settled()
    return answers


@pytest.mark.fault(
    "one address requests the pages of 40 engines at once",
    "four are drawn one after the other, the rest get 503 at once; a scrape waits for none, and others get their page",
)
async def test_pages_of_engines_are_drawn_one_by_one_and_few(page: Held) -> None:
    exporter, paths = of_engines(40)
    async with serving(exporter) as served:
        answers = await flood(served, paths)
        turned_away = [answer.result() for answer in answers if answer.done()]
        told = [(code, headers["retry-after"]) for code, headers, _ in turned_away]
        assert told == [(503, "1")] * (40 - MAX_QUEUED_PER_CLIENT)
        assert page.calls == 1
        assert (await served.get("/metrics", host=CROWD))[0] == 200
        assert (await served.get("/-/ready", host=CROWD))[0] == 200
        person = asyncio.create_task(served.get("/"))
        await settled()
        page.go.set()
        assert (await person)[0] == 200
        assert page.calls == MAX_QUEUED_PER_CLIENT + 1
        assert served.refused == {"pages": 40 - MAX_QUEUED_PER_CLIENT}


async def test_many_addresses_have_few_pages_drawn(page: Held) -> None:
    exporter, paths = of_engines(100)
    async with serving(exporter) as served:
        answers = []
        for number in range(10):
            answers += await flood(served, paths[10 * number : 10 * number + 10], f"127.0.0.{number + 2}")
        assert sum(not answer.done() for answer in answers) == MAX_QUEUED


@pytest.mark.fault("hundreds of unknown engines are requested (`?engine=`)", "one page is drawn for all of them")
async def test_engines_that_there_are_not_are_drawn_once(page: Held) -> None:
    page.go.set()
    async with serving() as served:
        answers = await flood(served, [f"/?engine=no-{number}" for number in range(200)])
        assert {(await answer)[0] for answer in answers} == {200}
        assert page.calls == 1


@pytest.mark.fault("the diagnosis is requested 200 times at once", "it is rendered once per snapshot, in a thread")
async def test_the_diagnosis_is_made_once_per_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Held(monkeypatch, status, "diagnosis_json")
    exporter = FakeExporter()
    async with serving(exporter) as served:
        answers = await flood(served, ["/api/v1/diagnosis"] * 200)
        assert (await served.get("/metrics"))[0] == 200
        made.go.set()
        assert {(await answer)[0] for answer in answers} == {200}
        assert made.calls == 1
        exporter.current = engines(2)
        assert b"engine-1" in (await served.get("/api/v1/diagnosis"))[2]
        assert made.calls == 2


@pytest.mark.fault(
    "one address requests 100 runbooks filled in differently", "four are rendered, the rest get 503 at once"
)
async def test_runbooks_are_filled_in_one_by_one_and_few(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Held(monkeypatch, runbooks, "page_html")
    async with serving() as served:
        answers = await flood(served, [f"/runbooks/KVPressureEngineStuck?pod={number}" for number in range(100)])
        assert sum(answer.done() and answer.result()[0] == 503 for answer in answers) == 100 - MAX_QUEUED_PER_CLIENT
        assert (await served.get("/metrics"))[0] == 200
        made.go.set()
        assert (
            sorted([(await answer)[0] for answer in answers])[:MAX_QUEUED_PER_CLIENT] == [200] * MAX_QUEUED_PER_CLIENT
        )


@pytest.mark.fault("scrapers come at once, 300 of them", "the page is rendered once for all of them")
async def test_three_hundred_scrapers_cost_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = Held(monkeypatch, text, "render")
    rendered.go.set()
    async with serving() as served:
        answers = await flood(served, ["/metrics"] * 300, "127.0.0.1")
        assert {(await answer)[0] for answer in answers} == {200}
        assert rendered.calls == 1


@pytest.mark.fault(
    "the server is always busy with its clients' requests",
    "the event loop of the polls is not delayed: the server has its own thread",
)
async def test_a_busy_server_does_not_hold_up_the_loop_of_the_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = Held(monkeypatch, text, "render")
    listener = Listener(FakeExporter(), validate(WebSettings, {"listen_address": "127.0.0.1:0"}))
    [url] = await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(METRICS)
    await asyncio.to_thread(rendered.begun.wait)
    for _ in range(50):  # the server's loop stands still in the middle of an answer
        await asyncio.sleep(0.001)
    rendered.go.set()
    assert (await reader.readline()).split()[1] == b"200"
    writer.close()
    await listener.close()


async def test_all_addresses_of_ipv6_are_those_of_ipv4_too() -> None:
    listener = Listener(FakeExporter(), validate(WebSettings, {"listen_address": "[::]:0"}))
    [url] = await listener.start()
    try:
        for host in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(host, int(url.rpartition(":")[2]))
            writer.write(METRICS)
            assert (await reader.readline()).split()[1] == b"200"
            writer.close()
    finally:
        await listener.close()
