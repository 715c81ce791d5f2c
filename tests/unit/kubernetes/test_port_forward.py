"""The port-forward's protocol, and its behaviour against an API server that speaks it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.client import KubeClient
from kvpressure.kubernetes.kubeconfig import Config
from kvpressure.kubernetes.port_forward import Frames, PortForward, explain_forward
from tests.stubs.portforward import ADDRESS, ApiServer, Cluster, serving
from tests.support.certificates import authority, server_context

pytestmark = pytest.mark.process

PORT = 8000
START = [b"\x00\x40\x1f", b"\x01\x40\x1f"]


async def hello(request: web.Request) -> web.Response:
    return web.Response(text=f"hello {request.query_string}")


def engine() -> web.Application:
    app = web.Application()
    app.add_routes([web.get("/metrics", hello)])
    return app


@contextlib.asynccontextmanager
async def forwarded(cluster: Cluster, port: int = PORT) -> AsyncIterator[PortForward]:
    """A port-forward to pod llama-0, whose engine is up unless the cluster says otherwise."""
    async with serving(engine()) as there, serving(ApiServer(cluster).app) as api:
        cluster.engines.setdefault(("llama-0", PORT), there)
        async with KubeClient(config(api)) as client, PortForward(client, "prod", "llama-0", port) as forward:
            yield forward


def config(api: ADDRESS, scheme: str = "http", **fields: object) -> Config:
    return Config(server=f"{scheme}://{api[0]}:{api[1]}", context="test", **fields)  # type: ignore[arg-type]


async def ask(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.binary(max_size=8)), max_size=12))
def test_the_frames_of_each_channel_give_its_bytes_without_the_port_before_them(messages):
    frames = Frames(PORT)
    sent = {0: START[0][1:], 1: START[1][1:]}
    whole = b""
    for channel, data in [(0, sent[0]), (1, sent[1]), *messages]:
        whole += frames.feed(bytes((channel,)) + data)
    assert whole == b"".join(data for channel, data in messages if channel == 0)
    assert frames.error == b"".join(data for channel, data in messages if channel == 1).decode(errors="replace")


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6))
def test_the_port_may_come_in_pieces(sizes):
    stream, frames, got = b"\x40\x1fpage", Frames(PORT), b""
    while stream:
        size = sizes.pop(0) if sizes else len(stream)
        got += frames.feed(b"\x00" + stream[:size])
        stream = stream[size:]
    assert got == b"page"


@given(st.binary(max_size=6))
def test_whatever_comes_gives_bytes_or_a_sentence(message):
    with contextlib.suppress(KubeError):
        assert isinstance(Frames(PORT).feed(message), bytes)


def test_a_forward_to_another_port_or_channel_is_refused():
    with pytest.raises(KubeError, match="not to the requested port"):
        Frames(PORT).feed(b"\x00\x50\x00")
    with pytest.raises(KubeError, match="channel 7"):
        Frames(PORT).feed(b"\x07x")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("dial tcp4 127.0.0.1:8000: connect: connection refused", "nothing listens on port 8000 in pod prod/llama-0"),
        ("network namespace for sandbox is closed: container not running", "does not run pod prod/llama-0 any more"),
        ("", "closed at once"),
        ("something \x1b[31m else", "failed: something ?[31m else"),
    ],
)
def test_what_the_node_says_becomes_a_sentence(said, sentence):
    assert sentence in explain_forward(said, "prod/llama-0", PORT)


async def test_requests_go_through_and_nothing_is_left_open_afterwards():
    cluster = Cluster()
    async with forwarded(cluster) as forward:
        answers = await asyncio.gather(*(ask(f"{forward.url}/metrics?{at}") for at in range(5)))
        assert answers == [f"hello {at}" for at in range(5)]
        assert forward.url.startswith("http://127.0.0.1:")
    assert cluster.forwards == 5
    gc.collect()


async def test_a_kept_alive_connection_is_one_forward():
    cluster = Cluster()
    async with forwarded(cluster) as forward, aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.get(f"{forward.url}/metrics") as response:
                assert await response.text() == "hello "
    assert cluster.forwards == 1


async def test_a_refusing_port_is_known_before_anything_is_sampled():
    with pytest.raises(KubeError, match=r"nothing listens on port 8000 in pod prod/llama-0 \(connection refused\)"):
        async with forwarded(Cluster(engines={("llama-0", PORT): ("127.0.0.1", 1)})):
            raise AssertionError("must not get here")


async def test_an_engine_that_goes_away_is_told_and_one_that_comes_back_forgets_it():
    cluster = Cluster()
    async with forwarded(cluster) as forward:
        there = cluster.engines["llama-0", PORT]
        assert await ask(f"{forward.url}/metrics") == "hello "
        cluster.engines["llama-0", PORT] = ("127.0.0.1", 1)
        with pytest.raises(aiohttp.ClientError):
            await ask(f"{forward.url}/metrics")
        assert "nothing listens on port 8000" in forward.problem
        cluster.engines["llama-0", PORT] = there
        assert await ask(f"{forward.url}/metrics") == "hello "
        assert forward.problem == ""


async def test_a_forbidden_forward_says_which_permission_is_missing():
    cluster = Cluster(forbidden={"get pods/portforward"})
    with pytest.raises(KubeError, match=r"you may not get pods/portforward llama-0 in namespace prod .*User"):
        async with forwarded(cluster):
            raise AssertionError("must not get here")


async def test_a_server_without_the_protocol_is_told():
    async def upgrade(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.close()
        return socket

    app = web.Application()
    app.add_routes([web.get("/{anything:.*}", upgrade)])
    async with serving(app) as api, KubeClient(config(api)) as client:
        with pytest.raises(KubeError, match="does not forward ports over websockets"):
            async with PortForward(client, "prod", "llama-0", PORT):
                raise AssertionError("must not get here")


async def test_tls_and_a_token_are_used_for_the_upgrade_too(tmp_path: Path):
    ca = authority(tmp_path)
    cluster = Cluster(token="secret")
    async with (
        serving(engine()) as there,
        serving(ApiServer(cluster).app, server_context(*ca.issue("api"))) as api,
        KubeClient(config(api, "https", ca=ca.ca_file.read_bytes(), token="secret")) as client,
    ):
        cluster.engines["llama-0", PORT] = there
        async with PortForward(client, "prod", "llama-0", PORT) as forward:
            assert await ask(f"{forward.url}/metrics") == "hello "


async def test_an_untrusted_server_gets_no_token(tmp_path: Path):
    (tmp_path / "other").mkdir()
    ca, other = authority(tmp_path), authority(tmp_path / "other", "other")
    cluster = Cluster()
    async with (
        serving(ApiServer(cluster).app, server_context(*ca.issue("api"))) as api,
        KubeClient(config(api, "https", ca=other.ca_file.read_bytes(), token="secret")) as client,
    ):
        with pytest.raises(KubeError, match="context test cannot be reached: TLS with"):
            async with PortForward(client, "prod", "llama-0", PORT):
                raise AssertionError("must not get here")
    assert cluster.headers == []


async def test_a_client_certificate_from_the_kubeconfig_is_shown(tmp_path: Path):
    ca = authority(tmp_path)
    certificate, key = ca.issue("ada")
    context = server_context(*ca.issue("api"), client_ca=ca.ca_file)
    assert context.verify_mode is ssl.CERT_REQUIRED
    pair = {"certificate": certificate.read_bytes(), "key": key.read_bytes()}
    cluster = Cluster()
    async with (
        serving(engine()) as there,
        serving(ApiServer(cluster).app, context) as api,
        KubeClient(config(api, "https", ca=ca.ca_file.read_bytes(), **pair)) as client,
    ):
        cluster.engines["llama-0", PORT] = there
        async with PortForward(client, "prod", "llama-0", PORT) as forward:
            assert await ask(f"{forward.url}/metrics") == "hello "


@pytest.mark.fault(
    "an API server, or a server in its place, redirects a port-forward", "it is refused with an error message"
)
async def test_a_redirect_of_the_upgrade_is_not_followed():
    elsewhere_asked = 0

    async def elsewhere(_: web.Request) -> web.Response:
        nonlocal elsewhere_asked
        elsewhere_asked += 1
        return web.Response()

    there = web.Application()
    there.add_routes([web.get("/{path:.*}", elsewhere)])
    async with serving(there) as (host, port):

        async def redirect(_: web.Request) -> web.Response:
            raise web.HTTPFound(f"http://{host}:{port}/stolen")

        api = web.Application()
        api.add_routes([web.get("/{path:.*}", redirect)])
        async with serving(api) as address, KubeClient(config(address, token="secret")) as client:
            with pytest.raises(KubeError, match="answered with a redirect"):
                async with PortForward(client, "prod", "llama-0", PORT):
                    pass
    assert elsewhere_asked == 0
