"""HTTP: /metrics, /targets, /, /api/v1/diagnosis and the probes, all from the newest snapshot; and the runbooks.

What takes a while to make is made in a thread, one after the other, and whoever asks for too much of it is told to come
again. No handler does I/O but the runbooks', which are read from the package there.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from kvpressure.diagnosis.verdict import Cause
from kvpressure.exposition import diagnosis_json, runbooks, status, text
from kvpressure.exposition.panel import Action, ident
from kvpressure.exposition.snapshot import EngineView, Snapshot
from kvpressure.webwork import RETRY_SECONDS, Bounded, Busy

Authorize = Callable[[str | None, str], Awaitable[bool]]
"""Judges an Authorization header, "" or the address of whom it came from beside it. Raises Busy."""

RUNBOOKS: Mapping[Cause, str] = {
    Cause.KV_CACHE_PRESSURE: "KVCachePressure",
    Cause.CONCURRENCY_BOUND: "SequenceCapReached",
    Cause.COMPUTE_BOUND: "EngineComputeBound",
    Cause.HOST_BOUND: "EngineHostBound",
    Cause.STUCK: "EngineStuck",
}
"""The runbook that fits a cause, by the name of its alert; causes without one get no link."""

OPEN_PATHS: Final = ("/-/healthy", "/-/ready")
"""Need no credentials: a kubelet has none, and they tell nothing about the workload."""

KEPT_PAGES: Final = 4
"""Pages for people that are kept of one snapshot: everybody's, and those with an engine asked for."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'",
    "Referrer-Policy": "no-referrer",
}


class Exporter(Protocol):
    """What the server asks of the daemon."""

    def snapshot(self) -> Snapshot:
        """The newest snapshot; the same object until the next one is made."""

    def advice(self, view: EngineView) -> Sequence[Action]:
        """What to do about one engine, in order; empty when there is nothing to be done. Called from any thread."""

    def not_ready(self) -> list[str]:
        """Why the exporter is not ready, in sentences; empty when it is."""


@dataclass(slots=True)
class Pages:
    """Metrics pages of one snapshot, each rendered and compressed at most once, and only when asked for."""

    snapshot: Snapshot
    _rendered: dict[tuple[bool, bool], bytes] = field(default_factory=dict)
    _targets: bytes = b""

    def get(self, *, openmetrics: bool, compressed: bool) -> bytes:
        """The page in the wanted format and encoding."""
        key = (openmetrics, compressed)
        if key not in self._rendered:
            if compressed:
                plain = self.get(openmetrics=openmetrics, compressed=False)
                self._rendered[key] = gzip.compress(plain, compresslevel=1, mtime=0)
            else:
                self._rendered[key] = text.render(self.snapshot, openmetrics=openmetrics)
        return self._rendered[key]

    def targets(self) -> bytes:
        """What `/targets` answers."""
        self._targets = self._targets or json.dumps(status.targets_json(self.snapshot)).encode()
        return self._targets


class Site:
    """The handlers. `authorize` judges the Authorization header of every request but the probes'."""

    def __init__(self, exporter: Exporter, telemetry_path: str, authorize: Authorize) -> None:
        self._exporter = exporter
        self._telemetry_path = telemetry_path
        self._authorize = authorize
        self._pages = Pages(exporter.snapshot())
        self.drawing = Bounded("drawing")
        self._drawn: dict[str, tuple[Snapshot, bytes]] = {}

    def app(self, *before: Middleware) -> web.Application:
        """The application with all routes; requests go through the middlewares `before` first."""
        app = web.Application(middlewares=(*before, self._guard), client_max_size=4096)
        app.on_cleanup.append(self._close)
        app.on_response_prepare.append(_add_headers)
        app.add_routes(
            [
                web.get(self._telemetry_path, self._metrics),
                web.get("/targets", self._targets),
                web.get("/api/v1/diagnosis", self._diagnosis),
                web.get("/runbooks", self._runbooks),
                web.get("/runbooks/", self._runbook),
                web.get("/runbooks/{alert}", self._runbook),
                web.get("/-/healthy", self._healthy),
                web.get("/-/ready", self._ready),
                web.get("/", self._root),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        client = request.remote or ""
        try:
            allowed = request.path in OPEN_PATHS or await self._authorize(request.headers.get("Authorization"), client)
        except Busy:
            return _come_again(429, "too many credentials are being checked")
        if not allowed:
            return web.Response(status=401, text="credentials needed\n", headers={"WWW-Authenticate": "Basic"})
        try:
            return await handler(request)
        except Busy:
            return _come_again(503, "too many pages are being drawn")

    async def _metrics(self, request: web.Request) -> web.Response:
        openmetrics = wants_openmetrics(request.headers.get("Accept", ""))
        compressed = accepts_gzip(request.headers.get("Accept-Encoding", ""))
        headers = {"Content-Type": text.OPENMETRICS if openmetrics else text.TEXT, "Vary": "Accept, Accept-Encoding"}
        if compressed:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=self._newest().get(openmetrics=openmetrics, compressed=compressed), headers=headers)

    def _newest(self) -> Pages:
        """The pages of the newest snapshot."""
        snapshot = self._exporter.snapshot()
        if snapshot is not self._pages.snapshot:
            self._pages = Pages(snapshot)
        return self._pages

    async def _targets(self, _: web.Request) -> web.Response:
        return web.Response(body=self._newest().targets(), content_type="application/json", charset="utf-8")

    async def _diagnosis(self, request: web.Request) -> web.Response:
        def draw(snapshot: Snapshot) -> str:
            return json.dumps(diagnosis_json.diagnosis_json(snapshot, self._exporter.advice))

        body = await self._once("/api/v1/diagnosis", request, draw)
        return web.Response(body=body, content_type="application/json", charset="utf-8")

    async def _root(self, request: web.Request) -> web.Response:
        asked, snapshot = request.query.get("engine", ""), self._exporter.snapshot()
        # Whatever else is asked for would be drawn as the page of no engine in particular.
        wanted = asked if asked and asked in {ident(view.labels) for view in snapshot.known} else ""

        def draw(snapshot: Snapshot) -> str:
            return status.status_html(snapshot, self._telemetry_path, self._exporter.advice, RUNBOOKS, wanted)

        headers = {"Content-Security-Policy": status.content_security_policy(), "Cache-Control": "no-store"}
        body = await self._once(f"/?{wanted}", request, draw)
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)

    async def _once(self, name: str, request: web.Request, draw: Callable[[Snapshot], str]) -> bytes:
        """A document of the newest snapshot, made once of each. Raises Busy."""
        drawn = self._drawn.get(name)
        if drawn is None or drawn[0] is not self._exporter.snapshot():

            def work() -> tuple[Snapshot, bytes]:
                snapshot = self._exporter.snapshot()
                return snapshot, draw(snapshot).encode()

            drawn = await self.drawing.run(name, request.remote or "", work)
            self._drawn.pop(name, None)
            self._drawn[name] = drawn
            while len(self._drawn) > KEPT_PAGES:
                del self._drawn[next(iter(self._drawn))]
        return drawn[1]

    async def _runbooks(self, request: web.Request) -> web.Response:
        # Relative, so that it also works behind a proxy that adds a prefix.
        raise web.HTTPFound(f"runbooks/?{request.rel_url.raw_query_string}")

    async def _runbook(self, request: web.Request) -> web.Response:
        name = request.match_info.get("alert", runbooks.INDEX)
        work = functools.partial(_runbook, name, request.query)
        found, page = await self.drawing.run(("runbook", request.path_qs), request.remote or "", work)
        headers = {"Content-Security-Policy": runbooks.content_security_policy()}
        return web.Response(text=page, content_type="text/html", headers=headers, status=200 if found else 404)

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="kvpressure is healthy\n")

    async def _ready(self, _: web.Request) -> web.Response:
        reasons = self._exporter.not_ready()
        body = "".join(f"{reason}\n" for reason in reasons) or "kvpressure is ready\n"
        return web.Response(text=body, status=503 if reasons else 200)

    async def _close(self, _: web.Application) -> None:
        self.drawing.close()


def _runbook(name: str, query: Mapping[str, str]) -> tuple[bool, str]:
    """Whether there is such a runbook, and it or the list of all."""
    try:
        return True, runbooks.page_html(name, query)
    except KeyError:
        return False, runbooks.missing_html(name, query)


def _come_again(status_code: int, why: str) -> web.Response:
    again = {"Retry-After": str(RETRY_SECONDS)}
    return web.Response(status=status_code, text=f"{why}: come again\n", headers=again)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)


def wants_openmetrics(accept: str) -> bool:
    """True when the Accept header prefers OpenMetrics 1.0 (or any version of it) to plain text."""
    weights = {"openmetrics": 0.0, "text": 0.0}
    for part in accept.split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        weight = _quality(parameters)
        if media == "application/openmetrics-text" and "version=0.0.1" not in parameters:
            weights["openmetrics"] = max(weights["openmetrics"], weight)
        elif media == "text/plain":
            weights["text"] = max(weights["text"], weight)
    return weights["openmetrics"] > 0 and weights["openmetrics"] >= weights["text"]


def accepts_gzip(accept_encoding: str) -> bool:
    """True when the Accept-Encoding header allows gzip."""
    for part in accept_encoding.split(","):
        coding, *parameters = (piece.strip() for piece in part.split(";"))
        if coding.lower() == "gzip":
            return _quality(parameters) > 0
    return False


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0
