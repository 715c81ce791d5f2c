"""What the daemon's client of the API server refuses and bounds; its requests as the server sees them."""

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kvpressure.kubernetes import GoneError, KubeError
from kvpressure.kubernetes.watch import connection
from kvpressure.kubernetes.watch.connection import MAX_PAGE_BYTES, MAX_STATUS_BYTES, Connection, ServiceAccount
from kvpressure.kubernetes.watch.resource import Resource
from kvpressure.model.errors import SourceError, TooLargeError
from tests.stubs.kube_api import status
from tests.support.certificates import authority, server_context

pytestmark = pytest.mark.process

PODS = Resource("kubernetes_pods", "pods", "prod")
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
async def connected(account: ServiceAccount, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connection]:
    monkeypatch.setattr(connection, "service_account", lambda: account)
    made = Connection()
    try:
        yield made
    finally:
        await made.aclose()


@asynccontextmanager
async def asking(
    handler: Handler, folder: Path, monkeypatch: pytest.MonkeyPatch, token: str = "secret"
) -> AsyncIterator[Connection]:
    (folder / "token").write_text(token)
    async with (
        serving(handler) as port,
        connected(ServiceAccount(f"http://127.0.0.1:{port}", folder), monkeypatch) as made,
    ):
        yield made


async def test_a_request_is_what_it_says_and_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        response = web.json_response({"kind": "PodList", "metadata": {"resourceVersion": "7"}})
        response.set_cookie("session", "kept")
        return response

    async with asking(answer, tmp_path, monkeypatch) as made:
        for token in ("secret", "rotated"):
            (tmp_path / "token").write_text(token)
            assert (await made.page(PODS, {"labelSelector": "a in (b,c)"})).version == "7"
    for request in seen:
        assert (request.path, dict(request.query)) == (f"/{PODS.path}", {"labelSelector": "a in (b,c)"})
        assert request.headers["Accept-Encoding"] == "identity"
        assert "Cookie" not in request.headers
    assert [request.headers["Authorization"] for request in seen] == ["Bearer secret", "Bearer rotated"]


@pytest.mark.parametrize(
    ("code", "reason", "sentence"),
    [
        (302, "http_status", "answered with a redirect, which is not followed"),
        (401, "unauthorized", "does not accept our credentials"),
        (403, "forbidden", r"answered 403 to list pods in namespace prod \(it says: no\)"),
        (410, "http_status", "answered 410"),
        (500, "http_status", "answered 500 to list pods in namespace prod"),
    ],
)
async def test_every_refusal_has_its_word_and_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: str, sentence: str
) -> None:
    async def refuse(_: web.Request) -> web.Response:
        answer = status(code, "no")
        answer.headers["Location"] = "http://127.0.0.1:1/stolen"
        return answer

    async with asking(refuse, tmp_path, monkeypatch) as made:
        with pytest.raises(KubeError, match=sentence) as refused:
            await made.page(PODS, {})
        assert (refused.value.status, refused.value.reason, refused.value.message) == (code, reason, "no")
        assert isinstance(refused.value, GoneError) == (code == 410)


@pytest.mark.fault("an API server, or a server in its place, sends an endless answer", "reading ends at a bound")
@pytest.mark.parametrize("code", [200, 500])
async def test_an_answer_without_an_end_is_read_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=code)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)
            sent += 65536

    async with asking(endless, tmp_path, monkeypatch) as made:
        with pytest.raises(TooLargeError if code == 200 else KubeError, match="32 MiB" if code == 200 else "500"):
            await made.page(PODS, {})
    assert sent < 2 * MAX_PAGE_BYTES
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
    async with connected(ServiceAccount(f"http://{host}", tmp_path), monkeypatch) as made:
        with pytest.raises(SourceError, match="a cloud's metadata service"):
            await made.page(PODS, {})


async def test_of_the_addresses_of_a_name_the_first_that_answers_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = socket.getaddrinfo

    def resolve(name: str, port: int, *rest: Any, **more: Any) -> Any:
        if name != "api.test":
            return real(name, port, *rest, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.9", "127.0.0.1")]

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"kind": "PodList", "metadata": {"resourceVersion": request.host}})

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    ca = authority(tmp_path)
    (tmp_path / "ca.crt").write_bytes(ca.ca_file.read_bytes())
    (tmp_path / "token").write_text("secret")
    async with (
        serving(answer, server_context(*ca.issue("api"))) as port,
        connected(ServiceAccount(f"https://api.test:{port}", tmp_path), monkeypatch) as made,
    ):
        assert (await made.page(PODS, {})).version == f"api.test:{port}"


@pytest.mark.parametrize("server", ["http://[", "http://:x"])
async def test_a_server_that_is_no_address_is_a_sentence(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("secret")
    async with connected(ServiceAccount(server, tmp_path), monkeypatch) as made:
        with pytest.raises(SourceError, match="the API server cannot be reached"):
            await made.page(PODS, {})


@pytest.mark.fault(
    "a token that is not valid in a header, such as one of two lines", "nothing is sent, and the token is not shown"
)
@pytest.mark.parametrize("token", ["hunter2\nX-Other: 1", "hunter2\x00", "hunter2é"])
async def test_a_token_that_no_header_can_hold_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        raise AssertionError("must not be asked")

    async with asking(answer, tmp_path, monkeypatch, token) as made:
        with pytest.raises(KubeError, match=r"token .*nothing was sent") as refused:
            await made.page(PODS, {})
        assert "hunter2" not in str(refused.value)


@pytest.mark.fault("a service account's token or CA that is missing or no text", "a sentence names the file")
@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_files_of_the_account_that_cannot_be_used_are_named(tmp_path: Path, name: str) -> None:
    account, ca = ServiceAccount("https://api", tmp_path), authority(tmp_path)
    (tmp_path / "token").write_text("secret")
    (tmp_path / "ca.crt").write_bytes(ca.ca_file.read_bytes())
    assert account.options()["headers"] == {"Authorization": "Bearer secret"}
    path = tmp_path / name
    path.write_bytes(b"\xff\x00")
    with pytest.raises(KubeError, match=name):
        account.options()
    path.unlink()
    with pytest.raises(KubeError, match=f"{name}: No such file"):
        account.options()
