"""What the daemon's client of the API server refuses and bounds; its requests as the server sees them."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kvpressure.kubernetes import Action, GoneError, KubeError
from kvpressure.kubernetes.client import MAX_STATUS_BYTES, KubeClient, capped
from kvpressure.kubernetes.service_account import ServiceAccount
from kvpressure.net.outgoing import FAILURES
from tests.stubs.kube_api import status
from tests.support.certificates import authority, server_context

pytestmark = pytest.mark.process

LIST = Action("list", "pods", "prod")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port on loopback of a server that answers everything with `handler`."""
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", handler)])
    runner = web.AppRunner(app, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asking(handler: Handler, folder: Path, token: str = "secret") -> AsyncIterator[KubeClient]:
    (folder / "token").write_text(token)
    async with serving(handler) as port, KubeClient(ServiceAccount(f"http://127.0.0.1:{port}", folder)) as client:
        yield client


async def test_a_request_is_what_it_says_and_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        response = web.json_response({"kind": "PodList"})
        response.set_cookie("session", "kept")
        return response

    async with asking(answer, tmp_path) as client:
        for token in ("secret", "rotated"):
            (tmp_path / "token").write_text(token)
            async with await client.open("/api/v1/pods", LIST, {"labelSelector": "a in (b,c)"}) as response:
                assert await capped(response, 100) == b'{"kind": "PodList"}'
    for request in seen:
        assert (request.path, dict(request.query)) == ("/api/v1/pods", {"labelSelector": "a in (b,c)"})
        assert request.headers["Accept-Encoding"] == "identity"
        assert "Cookie" not in request.headers
    assert [request.headers["Authorization"] for request in seen] == ["Bearer secret", "Bearer rotated"]


@pytest.mark.parametrize(
    ("code", "reason", "sentence"),
    [
        (302, "http_status", "answered with a redirect, which is not followed"),
        (401, "unauthorized", "does not know this pod's service account"),
        (403, "forbidden", r"you may not list pods in namespace prod \(it says: no\); ask the administrator"),
        (404, "http_status", "has nothing to list pods"),
        (410, "http_status", "answered 410"),
        (500, "http_status", "answered 500 to list pods in namespace prod"),
    ],
)
async def test_every_refusal_has_its_word_and_sentence(tmp_path: Path, code: int, reason: str, sentence: str) -> None:
    async def refuse(_: web.Request) -> web.Response:
        answer = status(code, "no")
        answer.headers["Location"] = "http://127.0.0.1:1/stolen"
        return answer

    async with asking(refuse, tmp_path) as client:
        with pytest.raises(KubeError, match=sentence) as refused:
            await client.open("/pods", LIST, {})
        assert (refused.value.status, refused.value.reason, refused.value.message) == (code, reason, "no")
        assert isinstance(refused.value, GoneError) == (code == 410)


@pytest.mark.fault("an API server, or a server in its place, sends an endless answer", "reading ends at a bound")
@pytest.mark.parametrize("code", [200, 500])
async def test_an_answer_without_an_end_is_read_up_to_a_bound(tmp_path: Path, code: int) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=code)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)
            sent += 65536

    async with asking(endless, tmp_path) as client:
        if code == 500:
            with pytest.raises(KubeError, match="answered 500"):
                await client.open("/pods", LIST, {})
        else:
            async with await client.open("/pods", LIST, {}) as response:
                assert (1 << 20) < len(await capped(response, 1 << 20)) < (4 << 20)
    assert sent < (64 << 20)
    assert MAX_STATUS_BYTES <= 1 << 20


@pytest.mark.fault(
    "the environment names a cloud's metadata service as API server, or a name that resolves to one",
    "it never gets a request",
)
@pytest.mark.parametrize("host", ["169.254.169.254", "0xa9fea9fe", "[fd00:ec2::254]", "metadata.example"])
async def test_metadata_services_are_never_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    def resolve(name: str, *_: object, **__: object) -> Any:
        assert name == "metadata.example"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    (tmp_path / "token").write_text("secret")
    async with KubeClient(ServiceAccount(f"http://{host}", tmp_path)) as client:
        with pytest.raises(FAILURES) as refused:
            await client.open("/pods", LIST, {})
        assert "a cloud's metadata service" in str(client.unreachable(refused.value))


async def test_of_the_addresses_of_a_name_the_first_that_answers_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = socket.getaddrinfo

    def resolve(name: str, port: int, *rest: Any, **more: Any) -> Any:
        if name != "api.test":
            return real(name, port, *rest, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.9", "127.0.0.1")]

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=request.host)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    ca = authority(tmp_path)
    (tmp_path / "ca.crt").write_bytes(ca.ca_file.read_bytes())
    (tmp_path / "token").write_text("secret")
    async with serving(answer, server_context(*ca.issue("api"))) as port:
        account = ServiceAccount(f"https://api.test:{port}", tmp_path)
        async with KubeClient(account) as client, await client.open("/pods", LIST, {}) as response:
            assert await capped(response, 100) == f"api.test:{port}".encode()


@pytest.mark.parametrize("server", ["http://[", "http://:x"])
async def test_a_server_that_is_no_address_is_a_sentence(server: str, tmp_path: Path) -> None:
    with pytest.raises(KubeError, match="the API server's address"):
        KubeClient(ServiceAccount(server, tmp_path))


@pytest.mark.fault(
    "a token that is not valid in a header, such as one of two lines", "nothing is sent, and the token is not shown"
)
@pytest.mark.parametrize("token", ["hunter2\nX-Other: 1", "hunter2\x00", "hunter2é"])
async def test_a_token_that_no_header_can_hold_is_not_told(tmp_path: Path, token: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        raise AssertionError("must not be asked")

    async with asking(answer, tmp_path, token) as client:
        with pytest.raises(KubeError, match="token holds line breaks") as refused:
            await client.open("/pods", LIST, {})
        assert "hunter2" not in str(refused.value)


@pytest.mark.fault("a service account's token or CA that is endless, missing or no text", "a sentence names the file")
def test_files_of_the_account_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    account = ServiceAccount("https://api", tmp_path)
    for read, name in ((account.token, "token"), (account.tls, "ca.crt")):
        path = tmp_path / name
        with pytest.raises(KubeError, match=f"{name}: No such file"):
            read()
        with path.open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(KubeError, match="larger than 1 MiB"):
            read()
        path.write_bytes(b"\xff\x00")
        with pytest.raises(KubeError, match=f"cannot use .*{name}"):
            read()
