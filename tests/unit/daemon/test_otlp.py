"""Pushing: to a receiver that takes it, one that refuses, one that is not there, and without the library."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import importlib
import threading
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from kvpressure.config.settings.model import OtlpSettings
from kvpressure.daemon.otlp import OtlpPush, sender
from kvpressure.exposition import Snapshot
from kvpressure.net.schedule import SystemClock
from tests.support.processes import free_port
from tests.support.snapshots import collapsed

pytestmark = pytest.mark.recorded


class Receiver:
    """Takes pushes and answers with `status`."""

    def __init__(self) -> None:
        self.status = 200
        self.bodies: list[ExportMetricsServiceRequest] = []
        self.headers: list[Message] = []
        self.came = threading.Event()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.headers.append(self.headers)
                receiver.bodies.append(ExportMetricsServiceRequest.FromString(gzip.decompress(body)))
                assert self.path == "/in/v1/metrics"
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                receiver.came.set()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/in"

    def names(self) -> set[str]:
        (told,) = self.bodies[-1].resource_metrics
        return {metric.name for metric in told.scope_metrics[0].metrics}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_a_snapshot_arrives_with_the_headers_of_the_file(receiver: Receiver, tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer of-the-file\nX-Scope-OrgID: inference\n")
    assert sender(OtlpSettings(endpoint=receiver.url, headers_file=headers))(collapsed()) == ""
    assert {"kvpressure_bottleneck", "kvpressure_lost_tokens_total"} & receiver.names()
    assert receiver.headers[0]["Authorization"] == "Bearer of-the-file"
    assert receiver.headers[0]["X-Scope-OrgID"] == "inference"


def test_a_refusal_says_what_the_receiver_said(receiver: Receiver, capfd: pytest.CaptureFixture[str]) -> None:
    receiver.status = 401
    error = sender(OtlpSettings(endpoint=receiver.url))(Snapshot(1.0))
    assert "401" in error
    assert capfd.readouterr().err == "", "the library's own log lines are kept back"


def test_a_redirect_is_not_followed_for_it_would_take_keys_along(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("X-Api-Key: of-the-file\n")

    class Redirects(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(307)
            self.send_header("Location", f"{receiver.url}/v1/metrics")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Redirects) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = OtlpSettings(
            endpoint=f"http://127.0.0.1:{server.server_port}", headers_file=tmp_path / "headers", timeout_seconds=1
        )
        error = sender(settings)(Snapshot(1.0))
        server.shutdown()
    assert ("edirect" in error, receiver.headers) == (True, []), error


@pytest.mark.parametrize(
    "line", ["of-the-file", "Bearer of-the-file", "X Key: of-the-file", "X-Key: of-the-file\u20ac"]
)
def test_a_line_that_is_no_header_is_said_without_what_is_in_it(receiver: Receiver, tmp_path: Path, line: str) -> None:
    (tmp_path / "headers").write_text(f"X-Scope-OrgID: a\n{line}\n")
    error = sender(OtlpSettings(endpoint=receiver.url, headers_file=tmp_path / "headers"))(Snapshot(1.0))
    assert (error.endswith("is no `Name: value` of ASCII"), "of-the-file" in error) == (True, False), error
    assert receiver.headers == []


def test_nobody_there_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    settings = OtlpSettings(
        endpoint=f"http://127.0.0.1:{free_port()}", timeout_seconds=3
    )  # more than one pause before a retry
    assert "efused" in sender(settings)(Snapshot(1.0))
    assert capfd.readouterr().err == ""


def test_without_the_library_or_a_readable_file_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = sender(OtlpSettings(endpoint="http://127.0.0.1:1", headers_file=tmp_path / "none"))(Snapshot(1.0))
    assert str(tmp_path / "none") in error

    def missing(name: str, *_: Any) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert "pip install 'kv-pressure-exporter[otlp]'" in sender(OtlpSettings(endpoint="http://127.0.0.1:1"))(
        Snapshot(1.0)
    )


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110 - what is waited for knows of no event
        await asyncio.sleep(0.01)


async def test_it_pushes_now_and_then_and_tells_how_it_went(receiver: Receiver) -> None:
    push = OtlpPush(OtlpSettings(endpoint=receiver.url, interval_seconds=1), collapsed, SystemClock())
    assert push.health() == ()
    push.start()
    try:
        await until(push.health)
        (health,) = push.health()
        assert (health.source, health.up, health.error) == ("otlp", True, "")
        receiver.status = 400
        await until(lambda: not push.health()[0].up)
        (refused,) = push.health()
        assert refused.errors == {"push": 1}
        assert refused.last_success == health.last_success or refused.last_success is not None
        await push.reload(OtlpSettings())
        assert push.health() == ()
    finally:
        await push.stop()


async def test_where_no_endpoint_is_set_nothing_runs_and_the_library_is_not_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str, *_: Any) -> Any:
        raise AssertionError(f"{name} was imported")

    monkeypatch.setattr(importlib, "import_module", refuse)
    push = OtlpPush(OtlpSettings(), lambda: Snapshot(1.0), SystemClock())
    push.start()
    await asyncio.sleep(0)
    assert push.health() == ()
    await push.stop()
