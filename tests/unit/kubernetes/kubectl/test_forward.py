"""A port-forward by a stand-in for kubectl: refusals, ends and starts anew."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.kubectl import forward as forward_module
from kvpressure.kubernetes.kubectl.forward import PortForward, explain_forward
from kvpressure.kubernetes.kubectl.program import Kubectl
from tests.stubs.kubectl import ADDRESS, Cluster
from tests.support.kube_watch import until

pytestmark = pytest.mark.process

PORT = 8000


@contextlib.asynccontextmanager
async def engine(port: int = 0) -> AsyncIterator[ADDRESS]:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text=f"hello {request.query_string}")

    app = web.Application()
    app.add_routes([web.get("/metrics", hello)])
    runner = web.AppRunner(app, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield runner.addresses[0][:2]
    finally:
        await runner.cleanup()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(forward_module, "AGAIN_SECONDS", 0.05)
    made = Cluster(tmp_path)
    made.on_path(monkeypatch)
    made.write()
    return made


async def ask(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics?x=1") as response:
        return await response.text()


def forward() -> PortForward:
    return PortForward(Kubectl(), "prod", "llama-0", PORT)


async def test_a_page_comes_through_on_a_free_port_of_loopback_and_nothing_is_left(cluster: Cluster) -> None:
    async with engine() as there:
        cluster.engines["llama-0", PORT] = there
        cluster.write()
        async with forward() as one, forward() as other:
            assert {await ask(one.url), await ask(other.url)} == {"hello x=1"}
            assert one.url != other.url
            assert one.url.startswith("http://127.0.0.1:")
            assert one.problem == ""
            assert len(cluster.alive()) == 2
        assert not cluster.alive()


@pytest.mark.fault("nothing listens on the port of a pod", "a sentence before sampling; no kubectl is left")
async def test_a_refusal_in_the_pod_is_known_before_sampling(cluster: Cluster) -> None:
    with pytest.raises(KubeError, match=r"nothing listens on port 8000 in pod prod/llama-0 \(connection refused\)"):
        async with forward():
            raise AssertionError
    assert not cluster.alive()


@pytest.mark.fault("the server in a pod ends and starts again", "the port-forward is started again on the same port")
async def test_a_pod_that_refuses_for_a_while_is_read_again_at_the_same_address(cluster: Cluster) -> None:
    async with contextlib.AsyncExitStack() as stack:
        up = await stack.enter_async_context(contextlib.AsyncExitStack())
        there = await up.enter_async_context(engine())
        cluster.engines["llama-0", PORT] = there
        cluster.write()
        opened = await stack.enter_async_context(forward())
        url = opened.url
        await up.aclose()
        with contextlib.suppress(aiohttp.ClientError):
            await ask(url)
        await until(lambda: "nothing listens on port 8000" in opened.problem)
        await stack.enter_async_context(engine(there[1]))
        for _ in range(200):
            with contextlib.suppress(aiohttp.ClientError):
                assert await ask(url) == "hello x=1"
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError(opened.problem)
        assert opened.problem == ""


@pytest.mark.fault("kubectl is killed while it forwards a port", "it is started again on the same port")
async def test_a_kubectl_that_is_killed_is_started_again(cluster: Cluster) -> None:
    async with engine() as there:
        cluster.engines["llama-0", PORT] = there
        cluster.write()
        async with forward() as opened:
            (pid,) = cluster.alive()
            os.kill(pid, signal.SIGKILL)
            await until(lambda: [other for other in cluster.alive() if other != pid])
            for _ in range(200):
                with contextlib.suppress(aiohttp.ClientError):
                    assert await ask(opened.url) == "hello x=1"
                    break
                await asyncio.sleep(0.05)
        assert not cluster.alive()


async def test_a_permission_that_is_missing_is_passed_on(cluster: Cluster) -> None:
    cluster.forbidden.add("create pods/portforward")
    cluster.write()
    with pytest.raises(KubeError, match=r'kubectl port-forward pod/llama-0 .*User "ada" cannot create'):
        async with forward():
            raise AssertionError


@pytest.mark.fault("kubectl says nothing and does not end", "the port-forward is given up, and it is ended")
async def test_a_kubectl_that_hangs_is_given_up(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_module, "START_SECONDS", 0.5)
    cluster.hangs = True
    cluster.write()
    with pytest.raises(KubeError, match="did not listen within"):
        async with forward():
            raise AssertionError
    assert not cluster.alive()


@pytest.mark.parametrize(
    ("complaint", "sentence"),
    [
        ("dial tcp4 127.0.0.1:8000: connect: connection refused", "nothing listens on port 8000"),
        ('pods "x" not found', "the node does not run pod prod/x any more"),
        ("", "was closed at once"),
        ("unexpected EOF", "failed: unexpected EOF"),
    ],
)
def test_what_the_node_complains_of_is_a_sentence(complaint: str, sentence: str) -> None:
    assert sentence in explain_forward(complaint, "prod/x", 8000)
