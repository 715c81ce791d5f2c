"""Whoever can reach the exporter's port: what they may send, and what they get for it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer, unused_port

from kvpressure.config.settings import WebSettings
from kvpressure.config.settings.keys import validate
from kvpressure.exposition import Snapshot
from kvpressure.web.server import Listener
from kvpressure.web.site import Site
from tests.support.snapshots import collapsed

SECRET = "of-nobodys-concern"


class FakeExporter:
    def __init__(self) -> None:
        self.current = collapsed(seconds=10)

    def snapshot(self) -> Snapshot:
        return self.current

    def advice(self, view: object) -> tuple[()]:
        return ()

    def not_ready(self) -> list[str]:
        return []


@pytest.fixture
async def port() -> AsyncIterator[int]:
    chosen = unused_port()
    settings = validate(WebSettings, {"listen_address": f"127.0.0.1:{chosen}"})
    listener = Listener(FakeExporter(), settings)
    await listener.start()
    yield chosen
    await listener.close()


async def said(port: int, request: bytes) -> bytes:
    """The start of the answer to raw bytes; empty where the server just hung up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read(4096)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def healthy(port: int) -> bool:
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}/-/healthy") as answer:
        return answer.status == 200


@pytest.mark.fault(
    "a client sends invalid requests, headers of megabytes, or an endless body",
    "it is refused or disconnected, and the next client is answered",
)
@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\xff" * 5000,
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 2_000_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 2_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X%d: a\r\n" % n for n in range(100_000)) + b"\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + b"a" * 100_000,
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
    ],
    ids=["tls", "junk", "long header", "long path", "many headers", "endless body", "two lengths", "odd version"],
)
async def test_what_is_no_request_is_refused_and_the_next_one_answered(port: int, request_bytes: bytes) -> None:
    async with asyncio.timeout(300):
        answer = await said(port, request_bytes)
    assert not answer or answer.split(b" ")[1][:1] == b"4", answer[:200]
    assert b"Traceback" not in answer
    assert await healthy(port)


@pytest.mark.fault("a client requests a path outside the runbooks", "no file of the machine is ever read for a client")
@pytest.mark.parametrize(
    "path",
    [
        "/runbooks/../../../etc/passwd",
        "/runbooks/..%2f..%2f..%2fetc%2fpasswd",
        "/runbooks/%2fetc%2fpasswd",
        "/runbooks/....//etc/passwd",
        "/runbooks/KVPressureCacheTooSmall.md/../../settings/../../thresholds.yaml",
        "/runbooks/KVPressureCacheTooSmall%00.md",
        "/runbooks/..%5c..%5csecret",
        "//etc/passwd",
    ],
)
async def test_no_path_leads_to_a_file(port: int, path: str) -> None:
    answer = await said(port, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert answer.split(b" ")[1] in (b"404", b"400"), answer[:200]
    assert b"root:" not in answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.fault(
    "a client, or a page of another site in a reader's browser, sends anything but a GET",
    "nothing can be changed over HTTP, and no other site may read an answer",
)
async def test_nothing_is_changed_over_http_and_no_other_site_may_read(port: int, method: str) -> None:
    async with ClientSession() as session:
        for path in (
            "/",
            "/metrics",
            "/targets",
            "/api/v1/diagnosis",
            "/runbooks/KVPressureCacheTooSmall",
            "/-/healthy",
        ):
            url = f"http://127.0.0.1:{port}{path}"
            async with session.request(method, url, headers={"Origin": "http://elsewhere.example"}) as answer:
                assert answer.status == 405
            async with session.get(url, headers={"Origin": "http://elsewhere.example"}) as answer:
                assert answer.status == 200
                assert not [name for name in answer.headers if name.startswith("Access-Control-")]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.fault(
    "a client without credentials requests anything except the probes",
    "it gets no engine, no address and no error, for any path",
)
async def test_without_credentials_nothing_is_told_of_the_workload() -> None:
    async def nobody(header: str | None, client: str) -> bool:
        return False

    exporter = FakeExporter()
    names = {view.key.target for view in exporter.current.engines}
    async with TestClient(TestServer(Site(exporter, "/metrics", nobody).app())) as client:
        for path in ("/", "/metrics", "/targets", "/api/v1/diagnosis", "/runbooks/", "/nowhere", "/-/../metrics"):
            answer = await client.get(path, headers={"Authorization": f"Bearer {SECRET}"})
            told = await answer.text()
            assert (answer.status, told) == (401, "credentials needed\n")
        for path in ("/-/healthy", "/-/ready"):
            told = await (await client.get(path)).text()
            assert not any(name in told for name in names)
