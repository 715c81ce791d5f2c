"""Who connects and does not ask, asks without end, or does not take what he asked for. All on virtual time."""

import asyncio
import contextlib
import ssl
import tracemalloc
from pathlib import Path

import pytest

from kvpressure.exposition import text
from kvpressure.web import connections as webconnections
from kvpressure.web.connection import MAX_PAGES_BYTES, SLICE_BYTES
from tests.support.certificates import authority
from tests.support.virtual_time import on_virtual_time
from tests.support.web_kit import (
    HALF_A_HEAD,
    METRICS,
    FakeExporter,
    ended,
    engines,
    get,
    reads_nothing,
    serving,
    settled,
)


@pytest.mark.fault("clients connect and send nothing", "each is dropped after 10 s, and counted")
@on_virtual_time
async def test_silent_connections_are_dropped_after_ten_seconds() -> None:
    async with serving() as served:
        silent = [await served.client() for _ in range(20)]
        await asyncio.sleep(9)
        assert not any([await one.gone() for one in silent])
        await asyncio.sleep(3)
        assert all([await one.gone() for one in silent])
        assert served.refused == {"slow_request": 20}


@pytest.mark.fault("a client sends its headers a byte at a time", "it has 10 s for all of them")
@on_virtual_time
async def test_slow_headers_have_ten_seconds_whatever_still_comes() -> None:
    async with serving() as served:
        slow = await served.client(HALF_A_HEAD)
        for _ in range(9):
            slow.writer.write(b"x")
            await asyncio.sleep(1)
        assert not await slow.gone()
        with contextlib.suppress(ConnectionError):
            for _ in range(3):
                slow.writer.write(b"x")
                await asyncio.sleep(1)
        assert await slow.gone()
        assert served.refused == {"slow_request": 1}


@pytest.mark.fault("a client sends endless headers", "it is dropped at 32 KiB")
@on_virtual_time
async def test_a_head_that_is_longer_than_any_is_not_kept() -> None:
    async with serving() as served:
        endless = await served.client(HALF_A_HEAD)
        with contextlib.suppress(ConnectionError):
            for number in range(6):
                endless.writer.write(b"x" * 8000 + b"\r\nX-%d: " % number)
                await settled()
        assert await endless.gone()
        assert served.refused == {"request_too_long": 1}


@pytest.mark.fault("a client sends the body of its request a byte at a time", "it is answered and dropped at once")
@pytest.mark.parametrize(("method", "status"), [(b"GET", 200), (b"POST", 405)])
@on_virtual_time
async def test_a_slow_body_is_not_waited_for(method: bytes, status: int) -> None:
    async with serving() as served:
        began = asyncio.get_running_loop().time()
        slow = await served.client(method + b" /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nx")
        assert (await slow.answer())[0] == status
        assert await slow.gone()
        assert asyncio.get_running_loop().time() - began < 1
        assert len(served.server.connections) == 0


@pytest.mark.fault("a client stays connected and sends no further request", "it is dropped after 75 s")
@on_virtual_time
async def test_a_connection_that_is_kept_alive_for_nothing_is_dropped() -> None:
    async with serving() as served:
        idle = await served.client()
        for _ in range(2):  # each request begins the time anew
            assert (await idle.ask())[0] == 200
            await asyncio.sleep(73)
            assert not await idle.gone()
        await asyncio.sleep(3)
        assert await idle.gone()
        assert served.refused == {}


@pytest.mark.fault(
    "a client requests hundreds of pages at once on one connection", "it is dropped at 32 KiB of requests"
)
@on_virtual_time
async def test_requests_behind_each_other_are_bounded() -> None:
    async with serving() as served:
        eager = await served.client(METRICS * 2000)
        assert await eager.gone()
        assert served.refused == {"request_too_long": 1}


async def test_requests_behind_each_other_are_answered_in_order() -> None:
    async with serving() as served:
        client = await served.client(b"".join(get(path) for path in ("/-/ready", "/nowhere", "/metrics")))
        assert [(await client.answer())[0] for _ in range(3)] == [200, 404, 200]


def test_a_client_shares_its_places_with_its_network_only_where_that_is_one_machine() -> None:
    assert webconnections.client_of("10.0.0.1") != webconnections.client_of("10.0.0.2")
    assert webconnections.client_of("2001:db8::1") == webconnections.client_of("2001:db8::ffff:2")
    assert webconnections.client_of("2001:db8::1") != webconnections.client_of("2001:db8:0:1::1")
    assert webconnections.client_of("fe80::1%eth0") == webconnections.client_of("fe80::2")


def test_half_of_the_descriptors_are_for_connections() -> None:
    found = {limit: webconnections.max_connections(limit) for limit in (4, 128, 256, 1024, 20000, -1)}
    assert found == {4: 8, 128: 64, 256: 128, 1024: 512, 20000: 512, -1: 512}


# Who asks for a large page and does not take it: a page is held once however many ask, and only so many pages.
#
# On virtual time but for what is measured in bytes.


MIB = 1 << 20
PAGE_BYTES = 8 * MIB
CROWD = "127.0.0.2"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rendering is a page of its own, of 8 MiB that differ from place to place."""
    pattern = bytes(range(256)) * (PAGE_BYTES // 256 - 1)
    pages = iter(range(256))
    monkeypatch.setattr(text, "render", lambda *_, **__: pattern + bytes([next(pages)]) * 256)


@pytest.mark.usefixtures("large")
@pytest.mark.fault("a client requests a page and does not read it", "it is dropped after 30 s, its page is freed")
@on_virtual_time
async def test_a_page_that_is_not_taken_is_forgotten() -> None:
    async with serving() as served:
        slow = await reads_nothing(served)
        connections = served.server.connections
        await asyncio.sleep(28)
        assert connections.pages.size_bytes == PAGE_BYTES
        await asyncio.sleep(4)
        assert ended(slow)
        assert (connections.pages.size_bytes, len(connections)) == (0, 0)
        assert served.refused == {"slow_reader": 1}


@pytest.mark.usefixtures("large")
@pytest.mark.fault(
    "a hundred clients request a page of 8 MiB and do not read it",
    "it is in memory once, plus at most 32 KiB for each client; none is dropped before its 30 s",
)
async def test_slow_readers_share_one_page() -> None:
    async with serving() as served:
        assert len((await served.get("/metrics"))[2]) == PAGE_BYTES
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            await reads_nothing(served)
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert len(served.server.connections) == 101
        assert served.server.connections.pages.size_bytes == PAGE_BYTES
        assert 0 < held < 100 * (SLICE_BYTES + 48 * 1024)  # the connections themselves, with their clients, beside it
        assert served.refused == {}


@pytest.mark.usefixtures("large")
@pytest.mark.fault(
    "clients request the page of every second and read none",
    "16 MiB of pages are kept for all of them; readers of the oldest are dropped, and clients that read get their page",
)
@on_virtual_time
async def test_the_readers_of_the_oldest_pages_are_dropped() -> None:
    exporter = FakeExporter()
    async with serving(exporter) as served:
        slow = []
        for _ in range(6):
            exporter.current = engines(1)
            slow += [await reads_nothing(served) for _ in range(2)]
            assert 0 < served.server.connections.pages.size_bytes <= MAX_PAGES_BYTES
        assert served.refused == {"slow_reader": 8}
        assert [ended(one) for one in slow[:8]] == [True] * 8
        assert len((await served.get("/metrics"))[2]) == PAGE_BYTES
        assert len(served.server.connections) == 5


@pytest.mark.usefixtures("large")
@pytest.mark.fault(
    "clients that read slowly take every place",
    "a readiness probe is answered at once, also from their address: the longest of them is closed",
)
@pytest.mark.parametrize("host", ["127.0.0.1", CROWD])
@on_virtual_time
async def test_probes_are_answered_when_slow_readers_have_every_place(host: str) -> None:
    async with serving(most=16) as served:
        for _ in range(16):
            await reads_nothing(served)
        await asyncio.sleep(1)
        for path in ("/-/ready", "/-/healthy") * 3:
            began = asyncio.get_running_loop().time()
            assert (await served.get(path, host=host))[0] == 200
            assert asyncio.get_running_loop().time() - began < 0.1
        assert served.refused["full"] <= 6


@pytest.mark.usefixtures("large")
@pytest.mark.fault(
    "slow readers have every place, and incomplete requests keep arriving",
    "a probe is answered at once: the longest slow reader is closed, although the incomplete requests are too recent "
    "to be",
)
@on_virtual_time
async def test_half_heads_do_not_protect_slow_readers() -> None:
    async with serving(most=16) as served:
        for _ in range(16):
            await reads_nothing(served)
        await asyncio.sleep(1.5)
        for _ in range(8):
            await served.client(HALF_A_HEAD)
            await settled()
            began = asyncio.get_running_loop().time()
            assert (await served.get("/-/ready"))[0] == 200
            assert asyncio.get_running_loop().time() - began < 0.1


@pytest.mark.usefixtures("large")
async def test_the_kernel_holds_little_for_a_client() -> None:
    async with serving() as served:
        slow = await reads_nothing(served)
        served.server.connections.close()
        await settled()
        slow.settimeout(1)
        taken = 0
        with contextlib.suppress(ConnectionError):
            while got := slow.recv(1 << 16):
                taken += len(got)
        assert 0 < taken < MIB  # without a limit of ours Linux takes 2.5 MiB and more


def over_tls(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """A web configuration with a certificate, and what a client of it trusts."""
    ca = authority(directory)
    certificate, key = ca.issue("web")
    config = directory / "web.yml"
    config.write_text(f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n")
    return config, ssl.create_default_context(cafile=ca.ca_file)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("tls", [False, True])
async def test_a_page_in_slices_is_the_page(tls: bool, tmp_path: Path) -> None:
    config, trusting = over_tls(tmp_path) if tls else (None, None)
    async with serving(config=config) as served:
        client = await served.client(ssl=trusting)
        pages = [(await client.ask(METRICS))[2] for _ in range(2)]
        assert pages[0] == pages[1] == bytes(range(256)) * (PAGE_BYTES // 256 - 1) + bytes(256)
        client.writer.write(get("/metrics").replace(b"GET", b"HEAD"))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: %d\r\n" % (PAGE_BYTES) in head
        assert (await client.ask(get("/-/ready")))[0] == 200


@pytest.mark.fault(
    "a client has read its answer over TLS and sends nothing for a minute", "it counts as idle, not as a slow reader"
)
@on_virtual_time
async def test_whoever_has_read_all_over_tls_is_no_slow_reader(tmp_path: Path) -> None:
    config, trusting = over_tls(tmp_path)
    async with serving(config=config) as served:
        idle = await served.client(ssl=trusting)
        for _ in range(2):
            assert (await idle.ask())[0] == 200
            await asyncio.sleep(60)
            assert not await idle.gone()
        assert served.refused == {}
