"""What goes out with a request, and what the client makes of its surroundings."""

import asyncio
import base64
import os
import socket
from pathlib import Path

import pytest

from kvpressure.config.settings import PollSettings
from kvpressure.engines.engine import EngineSource
from tests.support import servers
from tests.support.engine_kit import GOOD_PAGE, Basic, VirtualClock, source_for
from tests.support.servers import FaultServer

GOOD = servers.page(GOOD_PAGE)
OPTIONS = PollSettings(timeout_seconds=5.0)


async def poll_well(source: EngineSource) -> None:
    assert await source.poll() is not None, source.health().error


async def test_a_request_asks_for_plain_text_uncompressed_and_sends_nothing_else_of_ours():
    async with FaultServer(GOOD) as server:
        source = source_for(server, OPTIONS)
        await poll_well(source)
        await source.aclose()
        headers = server.requests[0].headers
    assert set(headers) == {"host", "user-agent", "accept", "accept-encoding"}
    assert headers["accept-encoding"] == "identity"
    assert headers["accept"].startswith("text/plain")


async def test_all_polls_share_one_connection_and_cookies_are_not_kept():
    async with FaultServer(servers.always(servers.answer(GOOD_PAGE, headers=["Set-Cookie: a=b; Path=/"]))) as server:
        source = source_for(server, OPTIONS)
        for _ in range(5):
            await poll_well(source)
        await source.aclose()
    assert server.connections == 1
    assert not any("cookie" in request.headers for request in server.requests)


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch):
    async with FaultServer(GOOD) as server, FaultServer(servers.error()) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        source = source_for(server, OPTIONS)
        await poll_well(source)
        await source.aclose()
        assert proxy.connections == 0


async def test_an_ipv6_address_and_a_custom_path_are_asked():
    server = FaultServer(GOOD, host="::1")
    try:
        await server.start()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    source = source_for(server, PollSettings(filter="never", timeout_seconds=5.0), path="/custom/metrics")
    await poll_well(source)
    await source.aclose()
    await server.stop()
    assert server.requests[0].target == "/custom/metrics"


async def test_a_host_name_is_resolved_once_for_many_connections(monkeypatch: pytest.MonkeyPatch):
    lookups = []
    real = socket.getaddrinfo

    def counting(host: str, *args: object, **kwargs: object) -> object:
        lookups.append(host)
        return real("127.0.0.1", *args, **kwargs)  # type: ignore[arg-type]

    async with FaultServer(servers.always(servers.answer(GOOD_PAGE, headers=["Connection: close"]))) as server:
        monkeypatch.setattr(socket, "getaddrinfo", counting)
        source = source_for(f"http://vllm.example:{server.port}", OPTIONS)
        for _ in range(4):
            await poll_well(source)
        await source.aclose()
    assert server.connections == 4
    assert lookups == ["vllm.example"]


async def test_the_time_of_a_page_is_when_its_head_arrived():
    clock = VirtualClock()

    async def slow_body(_: servers.Request, writer: asyncio.StreamWriter) -> None:
        head, gap, body = servers.answer(GOOD_PAGE).partition(b"\r\n\r\n")
        writer.write(head + gap)
        await asyncio.sleep(0.05)
        clock.now += 0.5
        writer.write(body)

    async with FaultServer(slow_body) as server:
        source = source_for(server, OPTIONS, clock)
        page = await source.poll()
        await source.aclose()
    assert page.t == 1.8e9 + 1000.0
    assert source.health().t == 1.8e9 + 1000.5


async def test_requests_bytes_and_polls_are_counted():
    async with FaultServer(GOOD) as server:
        source = source_for(server, OPTIONS)
        for _ in range(3):
            await poll_well(source)
        server.behaviour = servers.half_page(GOOD_PAGE, honest_length=False)
        await source.poll()
        await source.aclose()
    counts = source.counts
    assert (counts.polls, source._client.requests, counts.late, counts.missed) == (4, 4, 0, 0)
    assert 3 * len(GOOD_PAGE) < source.bytes_received < 4 * len(GOOD_PAGE)


async def test_a_bearer_token_is_sent_and_read_again_when_its_file_changes(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("first\n")
    async with FaultServer(GOOD) as server:
        source = source_for(server, OPTIONS, bearer_token_file=token)
        await poll_well(source)
        token.write_text("second-token\n")
        await poll_well(source)
        (tmp_path / "next").write_text("third!")
        (tmp_path / "next").rename(token)
        await poll_well(source)
        await source.aclose()
    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer first", "Bearer second-token", "Bearer third!"]


async def test_basic_auth_takes_its_password_from_the_file(tmp_path: Path):
    password = tmp_path / "password"
    password.write_text("pä ss:word\n")
    async with FaultServer(GOOD) as server:
        source = source_for(server, OPTIONS, basic_auth=Basic("me", password))
        await poll_well(source)
        await source.aclose()
    scheme, _, encoded = server.requests[0].headers["authorization"].partition(" ")
    assert scheme == "Basic"
    assert base64.b64decode(encoded).decode() == "me:pä ss:word"


UNUSABLE = {
    "missing": (lambda path: None, "No such file"),
    "a directory": (Path.mkdir, "not a regular file"),
    "a pipe": (os.mkfifo, "not a regular file"),
    "empty": (lambda path: path.write_text("\n"), "is empty"),
    "two lines": (lambda path: path.write_text("topsecret\r\nX-Injected: 1"), "line breaks"),
    "two words": (lambda path: path.write_text("topsecret two"), "one token"),
    "binary": (lambda path: path.write_bytes(b"topsecret\xff"), "not UTF-8"),
    "huge": (lambda path: path.write_text("topsecret" * 10_000), "longer than"),
}


@pytest.mark.parametrize(("make", "said"), UNUSABLE.values(), ids=UNUSABLE)
async def test_a_token_file_that_cannot_be_used_is_named_and_nothing_is_sent(make, said: str, tmp_path: Path):
    token = tmp_path / "token"
    make(token)
    async with FaultServer(GOOD) as server:
        source = source_for(server, OPTIONS, bearer_token_file=token)
        assert await source.poll() is None
        health = source.health()
        assert health.reason == "credentials"
        assert said in health.error
        assert "topsecret" not in health.error
        assert server.connections == 0
        if token.is_dir():
            token.rmdir()
        else:
            token.unlink(missing_ok=True)
        token.write_text("good")
        await poll_well(source)
        await source.aclose()
