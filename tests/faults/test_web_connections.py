"""Who connects and does not ask, asks without end, or does not take what he asked for. All on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import pytest

from kvpressure.web import connections as webconnections
from tests.support import virtual_time
from tests.support.web_kit import HALF_A_HEAD, METRICS, get, serving, settled


def virtually(test: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(test)


@pytest.mark.fault("clients connect and send nothing", "each is dropped after 10 s, and counted")
def test_silent_connections_are_dropped_after_ten_seconds() -> None:
    async def story() -> None:
        async with serving() as served:
            silent = [await served.client() for _ in range(20)]
            await asyncio.sleep(9)
            assert not any([await one.gone() for one in silent])
            await asyncio.sleep(3)
            assert all([await one.gone() for one in silent])
            assert served.refused == {"slow_request": 20}

    virtually(story())


@pytest.mark.fault("a client sends its headers a byte at a time", "it has 10 s for all of them")
def test_slow_headers_have_ten_seconds_whatever_still_comes() -> None:
    async def story() -> None:
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

    virtually(story())


@pytest.mark.fault("a client sends endless headers", "it is dropped at 32 KiB")
def test_a_head_that_is_longer_than_any_is_not_kept() -> None:
    async def story() -> None:
        async with serving() as served:
            endless = await served.client(HALF_A_HEAD)
            with contextlib.suppress(ConnectionError):
                for number in range(6):
                    endless.writer.write(b"x" * 8000 + b"\r\nX-%d: " % number)
                    await settled()
            assert await endless.gone()
            assert served.refused == {"request_too_long": 1}

    virtually(story())


@pytest.mark.fault("a client sends the body of its request a byte at a time", "it is answered and dropped at once")
@pytest.mark.parametrize(("method", "status"), [(b"GET", 200), (b"POST", 405)])
def test_a_slow_body_is_not_waited_for(method: bytes, status: int) -> None:
    async def story() -> None:
        async with serving() as served:
            began = asyncio.get_running_loop().time()
            slow = await served.client(method + b" /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nx")
            assert (await slow.answer())[0] == status
            assert await slow.gone()
            assert asyncio.get_running_loop().time() - began < 1
            assert len(served.server.connections) == 0

    virtually(story())


@pytest.mark.fault("a client stays connected and sends no further request", "it is dropped after 75 s")
def test_a_connection_that_is_kept_alive_for_nothing_is_dropped() -> None:
    async def story() -> None:
        async with serving() as served:
            idle = await served.client()
            for _ in range(2):  # each request begins the time anew
                assert (await idle.ask())[0] == 200
                await asyncio.sleep(73)
                assert not await idle.gone()
            await asyncio.sleep(3)
            assert await idle.gone()
            assert served.refused == {}

    virtually(story())


@pytest.mark.fault(
    "a client requests hundreds of pages at once on one connection", "it is dropped at 32 KiB of requests"
)
def test_requests_behind_each_other_are_bounded() -> None:
    async def story() -> None:
        async with serving() as served:
            eager = await served.client(METRICS * 2000)
            assert await eager.gone()
            assert served.refused == {"request_too_long": 1}

    virtually(story())


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
