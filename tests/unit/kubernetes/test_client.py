"""What the client of the API server refuses, bounds and asks again; its requests as the server sees them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kvpressure.kubernetes import Action, GoneError, KubeError
from kvpressure.kubernetes import client as client_module
from kvpressure.kubernetes.client import MAX_STATUS_BYTES, KubeClient
from kvpressure.kubernetes.kubeconfig import Config
from tests.stubs.portforward import serving, status
from tests.support.certificates import authority, server_context

pytestmark = pytest.mark.process

LIST = Action("list", "pods", "prod")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def asking(handler: Handler, host: str = "127.0.0.1", **config: Any) -> AsyncIterator[KubeClient]:
    """A client of a server that answers everything with `handler`."""
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", handler)])
    async with serving(app) as (_, port), KubeClient(Config(f"http://{host}:{port}", "test", **config)) as client:
        yield client


async def test_a_request_is_what_it_says_and_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "")
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        response = web.json_response({"kind": "PodList", "a": "b"})
        response.set_cookie("session", "kept")
        return response

    groups = (("Impersonate-User", "eve"), ("Impersonate-Group", "a"), ("Impersonate-Group", "b"))
    async with asking(answer, token="secret", impersonate=groups) as client:
        for _ in range(2):
            assert (await client.json("/api/v1/pods", LIST, {"labelSelector": "a in (b,c)"}))["a"] == "b"
    for request in seen:
        assert (request.path, dict(request.query)) == ("/api/v1/pods", {"labelSelector": "a in (b,c)"})
        assert request.headers["Authorization"] == "Bearer secret"
        assert request.headers["Accept-Encoding"] == "identity"
        assert request.headers.getall("Impersonate-Group") == ["a", "b"]
        assert "Cookie" not in request.headers


async def test_pages_are_followed_to_the_end_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(dict(request.query))
        at = int(request.query.get("continue", "0"))
        return web.json_response({"metadata": {"continue": str(at + 1) if at < 4 else ""}, "items": [{"at": at}, "x"]})

    async with asking(answer) as client:
        assert await client.items("/pods", LIST, limit=7) == [{"at": at} for at in range(5)]
        assert asked == [{"limit": "7"}, *({"limit": "7", "continue": str(at)} for at in range(1, 5))]
        monkeypatch.setattr(client_module, "MAX_PAGES", 3)
        with pytest.raises(KubeError, match="more than 3 pages"):
            await client.items("/pods", LIST, limit=7)


@pytest.mark.parametrize(
    ("code", "reason", "sentence"),
    [
        (302, "http_status", "answered with a redirect, which is not followed"),
        (401, "unauthorized", "does not know the credentials of context test"),
        (403, "forbidden", r"you may not list pods in namespace prod \(it says: no\); ask the administrator"),
        (404, "http_status", "has nothing to list pods"),
        (410, "http_status", "answered 410"),
        (500, "http_status", "answered 500 to list pods in namespace prod"),
    ],
)
async def test_every_refusal_has_its_word_and_sentence(code: int, reason: str, sentence: str) -> None:
    async def refuse(_: web.Request) -> web.Response:
        answer = status(code, "no")
        answer.headers["Location"] = "http://127.0.0.1:1/stolen"
        return answer

    async with asking(refuse) as client:
        with pytest.raises(KubeError, match=sentence) as refused:
            await client.json("/pods", LIST)
        assert (refused.value.status, refused.value.reason, refused.value.message) == (code, reason, "no")
        assert isinstance(refused.value, GoneError) == (code == 410)


@pytest.mark.fault("an API server, or a server in its place, sends an endless answer", "reading ends at a bound")
@pytest.mark.parametrize("code", [200, 500])
async def test_an_answer_without_an_end_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(client_module, "MAX_JSON_BYTES", 1 << 20)
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=code)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)
            sent += 65536

    async with asking(endless) as client:
        with pytest.raises(KubeError, match="larger than 1 MiB" if code == 200 else "answered 500"):
            await client.json("/pods", LIST)
        assert len(await client.text("/log", LIST, {}, 1000)) == 1000 if code == 200 else True
    assert sent < (64 << 20)
    assert MAX_STATUS_BYTES <= 1 << 20


@pytest.mark.fault(
    "a kubeconfig names a cloud's metadata service as API server, or a name that resolves to one",
    "it never gets a request",
)
@pytest.mark.parametrize("host", ["169.254.169.254", "0xa9fea9fe", "[fd00:ec2::254]", "metadata.example"])
async def test_metadata_services_are_never_asked(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    def resolve(name: str, *_: object, **__: object) -> Any:
        assert name == "metadata.example"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with KubeClient(Config(f"http://{host}", "test", token="secret"), daemon=True) as client:
        with pytest.raises(KubeError, match="a cloud's metadata service"):
            await client.json("/pods", LIST)
        with pytest.raises(KubeError, match="a cloud's metadata service"):
            await client.websocket("/pods", LIST, {}, "v4.channel.k8s.io")


async def test_of_the_addresses_of_a_name_the_first_that_answers_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = socket.getaddrinfo

    def resolve(name: str, port: int, *rest: Any, **more: Any) -> Any:
        if name != "api.test":
            return real(name, port, *rest, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.9", "127.0.0.1")]

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"host": request.host})

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    ca = authority(tmp_path)
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    async with serving(app, server_context(*ca.issue("api"))) as (_, port):
        trusted = Config(f"https://api.test:{port}", "test", ca=ca.ca_file.read_bytes())
        async with KubeClient(trusted, daemon=True) as client:
            assert await client.json("/pods", LIST) == {"host": f"api.test:{port}"}


async def test_a_token_file_that_was_rotated_is_read_and_the_request_sent_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers["Authorization"])
        token.write_text("new")
        return web.json_response({}) if asked[-1] == "Bearer new" else status(401, "Unauthorized")

    async with asking(answer, token_file=token) as client:
        assert await client.json("/pods", LIST) == {}
    assert asked == ["Bearer old", "Bearer new"]


async def test_who_is_refused_for_good_is_asked_twice_and_makes_no_new_connections(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    peers: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peername"))
        return status(401, "Unauthorized")

    async with asking(answer, token_file=token) as client:
        for _ in range(5):
            with pytest.raises(KubeError, match="does not know the credentials"):
                await client.json("/pods", LIST)
    assert len(peers) == 10
    assert len(set(peers)) == 1


async def test_a_server_that_does_not_answer_is_told_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "DEADLINE_SECONDS", 0.05)

    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with asking(hang) as client:
        with pytest.raises(KubeError, match="did not answer within 0 s"):
            await client.json("/pods", LIST)
        with pytest.raises(KubeError, match="did not answer within 0 s"):
            await client.websocket("/pods", LIST, {}, "v4.channel.k8s.io")


@pytest.mark.parametrize("server", ["http://[", "http://:x", "https://a b"])
async def test_a_server_that_is_no_address_is_a_sentence(server: str) -> None:
    with pytest.raises(KubeError, match="."):  # noqa: RUF043
        async with KubeClient(Config(server, "test", origin="kc")) as client:
            await client.json("/pods", LIST)


@pytest.mark.fault(
    "a token that is not valid in a header, such as one of two lines", "nothing is sent, and the token is not shown"
)
@pytest.mark.parametrize("token", ["hunter2\nX-Other: 1", "hunter2\x00", "hunter2é"])
async def test_a_token_that_no_header_can_hold_is_not_told(tmp_path: Path, token: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        raise AssertionError("must not be asked")

    file = tmp_path / "token"
    file.write_text(token)
    for how in ({"token": token}, {"token_file": file}):
        async with asking(answer, origin="kc", **how) as client:
            with pytest.raises(KubeError, match="the Authorization header of kc holds") as refused:
                await client.json("/pods", LIST)
            assert "hunter2" not in str(refused.value)
