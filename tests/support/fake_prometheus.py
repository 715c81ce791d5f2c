"""A Prometheus without data that answers as it is told to: errors, warnings, and a past of one engine."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

NAMES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:generation_tokens_total")
LABELS = {"namespace": "prod", "pod": "llm-0", "instance": "10.0.0.1:8000", "model_name": "m", "engine": "0"}

Answer = tuple[int, "Mapping[str, Any] | bytes | Headed"]


@dataclass(frozen=True)
class Headed:
    """A body, and headers of its own."""

    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    method: str


Behaviour = Callable[[Request], Answer | None]


def success(data: Any, *warnings: str) -> Answer:
    return 200, {"status": "success", "data": data, **({"warnings": list(warnings)} if warnings else {})}


def failure(status: int, error: str) -> Answer:
    return status, {"status": "error", "errorType": "execution", "error": error}


def calm(request: Request) -> Answer:
    """One engine that is well."""
    if request.path.endswith("/label/__name__/values"):
        return success(list(NAMES))
    if request.path.endswith("/series"):
        return success([{"__name__": NAMES[0], **LABELS}])
    if request.path.endswith("/query_range") and request.query["query"].startswith("count_over_time"):
        values = [[float(request.query["start"]), "40"]]
        return success({"resultType": "matrix", "result": [{"metric": LABELS, "values": values}]})
    return success({"resultType": "matrix", "result": []})


@dataclass
class FakePrometheus:
    """`with FakePrometheus(behaviour) as server`; a behaviour that gives None leaves it to `calm`."""

    behaviour: Behaviour = lambda _: None
    tls: ssl.SSLContext | None = None
    prefix: str = ""
    requests: list[Request] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}{self.prefix}"

    def __enter__(self) -> FakePrometheus:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(urlsplit(self.path).query)

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

            def _answer(self, query: str) -> None:
                given = {name: values[0] for name, values in parse_qs(query).items()}
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(urlsplit(self.path).path, headers, given, self.command)
                outer.requests.append(request)
                status, body = outer.behaviour(request) or calm(request)
                more = body.headers if isinstance(body, Headed) else {}
                body = body.body if isinstance(body, Headed) else body
                text = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def dripping(head: bytes) -> Iterator[str]:
    """The address of a server that begins to answer with `head`, and gives a byte now and then for ever."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener.accept()[0] as connection, suppress(OSError):
            connection.recv(65_536)
            connection.sendall(head)
            while not over.wait(0.05):
                connection.sendall(b"a")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        thread.join(5)
        listener.close()
