"""A websocket to the API server, used from any task: what goes over it, and every way in which it ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from kvpressure.kubernetes import Action, KubeError
from kvpressure.kubernetes.client import KubeClient
from kvpressure.kubernetes.kubeconfig import Config
from kvpressure.kubernetes.websocket import MAX_MESSAGE_BYTES, WebSocket
from tests.stubs.portforward import PROTOCOL, serving

FORWARD = Action("get", "pods/portforward", "prod", "llama-0")


@asynccontextmanager
async def connected(talk: Callable[[web.WebSocketResponse, web.Request], Awaitable[None]]) -> AsyncIterator[WebSocket]:
    """A websocket to a server that talks like this and then hangs up."""

    async def upgrade(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=(PROTOCOL,), autoping=False, max_msg_size=0)
        await socket.prepare(request)
        await talk(socket, request)
        await socket.close()
        return socket

    app = web.Application()
    app.add_routes([web.get("/forward", upgrade)])
    async with serving(app) as (host, port), KubeClient(Config(f"http://{host}:{port}", "test")) as client:
        socket = await asyncio.create_task(client.websocket("/forward", FORWARD, {}, PROTOCOL))
        try:
            yield socket
        finally:
            await socket.close()
            assert socket.closed
    gc.collect()


async def test_bytes_go_both_ways_from_whatever_task_and_pings_are_answered() -> None:
    async def echo(socket: web.WebSocketResponse, _: web.Request) -> None:
        await socket.ping(b"there?")
        assert (await socket.receive()).type is WSMsgType.PONG
        async for message in socket:
            await socket.send_bytes(message.data * 2)

    async with connected(echo) as socket:
        for size in (0, 1, 125, 126, 65536, 400_000):
            await asyncio.create_task(socket.send(b"x" * size))
            assert await asyncio.create_task(socket.receive()) == b"x" * 2 * size
        assert not socket.closed


async def test_what_was_sent_before_the_end_is_received_before_it() -> None:
    async def hurry(socket: web.WebSocketResponse, _: web.Request) -> None:
        for at in range(20):
            await socket.send_bytes(bytes((at,)))

    async with connected(hurry) as socket:
        await asyncio.sleep(0.05)
        assert [await socket.receive() for _ in range(22)] == [*(bytes((at,)) for at in range(20)), None, None]
        assert socket.closed
        with pytest.raises(OSError, match="closed"):
            await socket.send(b"x")


async def no_text(socket: web.WebSocketResponse, _: web.Request) -> None:
    await socket.send_str("no binary message")


async def too_much(socket: web.WebSocketResponse, _: web.Request) -> None:
    await socket.send_bytes(b"x" * (MAX_MESSAGE_BYTES + 1))


async def in_pieces_without_end(socket: web.WebSocketResponse, request: web.Request) -> None:
    assert request.transport is not None
    request.transport.write(b"\x02\x00" + b"\x00\x7e\xff\xff".join([b""] + [b"x" * 65535] * 20))
    await asyncio.sleep(0.05)


async def garbage(_: web.WebSocketResponse, request: web.Request) -> None:
    assert request.transport is not None
    request.transport.write(b"\xff" * 64)
    await asyncio.sleep(0.05)


async def cut(_: web.WebSocketResponse, request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


@pytest.mark.fault(
    "an API server that sends a port-forward anything else than small binary messages, or cuts it",
    "only that connection ends",
)
@pytest.mark.parametrize("talk", [no_text, too_much, in_pieces_without_end, garbage, cut])
async def test_whatever_is_no_small_binary_message_ends_it(talk: Any) -> None:
    async with connected(talk) as socket, asyncio.timeout(300):
        assert await socket.receive() is None
        assert await socket.receive() is None


async def test_who_waits_for_a_message_hears_of_the_end() -> None:
    gone = asyncio.Event()

    async def wait(_: web.WebSocketResponse, __: web.Request) -> None:
        await gone.wait()

    async with connected(wait) as socket, asyncio.timeout(300):
        receiving = asyncio.create_task(socket.receive())
        await asyncio.sleep(0.02)
        gone.set()
        assert await receiving is None
    async with connected(wait) as socket:
        await socket.close()
        assert await socket.receive() is None


async def test_a_server_that_reads_nothing_keeps_nobody_from_closing() -> None:
    ended = asyncio.Event()

    async def deaf(_: web.WebSocketResponse, request: web.Request) -> None:
        assert request.transport is not None
        request.transport.pause_reading()  # type: ignore[attr-defined]
        await ended.wait()

    async with connected(deaf) as socket, asyncio.timeout(300):
        flooding = asyncio.create_task(flood(socket))
        await asyncio.sleep(0.2)
        flooding.cancel()
        await asyncio.wait({flooding})
        await socket.close()
        ended.set()


async def flood(socket: WebSocket) -> None:
    while True:
        await socket.send(b"x" * 65536)


async def test_a_cancelled_opening_leaves_no_task_behind() -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    app = web.Application()
    app.add_routes([web.get("/forward", hang)])
    async with serving(app) as (host, port), KubeClient(Config(f"http://{host}:{port}", "test")) as client:
        before = asyncio.all_tasks()
        opening = asyncio.create_task(client.websocket("/forward", FORWARD, {}, PROTOCOL))
        await asyncio.sleep(0.05)
        opening.cancel()
        await asyncio.wait({opening})
        assert opening.cancelled()
        mine = {task for task in asyncio.all_tasks() - before if "WebSocket" in repr(task.get_coro())}
        assert mine == set()


async def test_another_protocol_than_the_one_asked_for_is_refused() -> None:
    async def upgrade(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        await socket.receive()
        return socket

    app = web.Application()
    app.add_routes([web.get("/forward", upgrade)])
    async with serving(app) as (host, port), KubeClient(Config(f"http://{host}:{port}", "test")) as client:
        with pytest.raises(KubeError, match="does not forward ports over websockets"):
            await client.websocket("/forward", FORWARD, {}, PROTOCOL)


async def test_a_redirected_upgrade_is_not_followed() -> None:
    asked: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPFound("/stolen")

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", elsewhere)])
    async with serving(app) as (host, port), KubeClient(Config(f"http://{host}:{port}", "test", token="x")) as client:
        with pytest.raises(KubeError, match="answered with a redirect, which is not followed"):
            await client.websocket("/forward", FORWARD, {}, PROTOCOL)
    assert set(asked) == {"/forward"}
